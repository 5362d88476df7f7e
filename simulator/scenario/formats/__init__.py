"""Files that a scenario names: tables of regions, and SimGrid platforms.

Import `region_table` and `simgrid_xml`; `simgrid_elements` and `simgrid_platform` are its parts.
Each turns a file into plain records, and refuses what it does not take.
"""
