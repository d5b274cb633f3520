"""Files for people, which other features write: pages, workbooks, and whatever may be replaced with `--force`.

html      blocks as a page
xlsx      tables as a workbook
overview  a report as a page
cards     a user of a report, for pages
outputs   which files may be replaced
"""

from harness.feature import Feature

FEATURE = Feature("documents")
