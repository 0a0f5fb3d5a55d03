"""``python -m flowrl``, which is also what ``accelerate launch -m flowrl`` runs."""

from .cli import main

if __name__ == "__main__":
    main()
