"""Reports as files for people and programs. A report's content is made by a scorer; here it only
gets its looks."""
