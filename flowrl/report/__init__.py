"""What a run looks like to a person: one HTML page that opens anywhere, and a picture of before and after.

- `write_report`: ``report.html``, self-contained: curves, alarms, pairs of pictures, a table, the environment.
- `compare`: ``compare.png`` and the rows of the table.

Both read a run folder at any time, also while the run goes on or after it was killed.
"""

from .comparison import Comparison, compare
from .page import write_report
from .table import Row

__all__ = ["Comparison", "Row", "compare", "write_report"]
