"""The table in the reports' folder lists exactly the third-party files, with their licences."""

from arcforge_core.report.page import FOLDER
from support.vendored import check_vendored


def test_every_file_is_in_the_table_with_its_checksum_and_licence():
    check_vendored(FOLDER / "vendor")
