"""The table in the folder of the chat lists exactly the third-party files, with their licences."""

from importlib.resources import as_file, files

from support.vendored import check_vendored


def test_every_file_is_in_the_table_with_its_checksum_and_licence():
    with as_file(files("arcforge_serving").joinpath("page", "vendor")) as folder:
        check_vendored(folder)
