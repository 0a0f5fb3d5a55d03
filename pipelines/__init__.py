"""The model side: loaders and the bundled tiny models. Installed as ``flowrl.pipelines``."""
