"""Files for people, which other features write: pages and workbooks.

html      blocks as a page
xlsx      tables as a workbook
overview  a report as a page
cards     a user of a report, for pages
outputs   which files an output may replace
"""

from harness.feature import Feature

FEATURE = Feature("documents")
