from arcforge_core.errors import ArcforgeError, ConfigError, UnknownComponentError, nearest


def test_a_config_error_names_field_value_and_what_is_accepted():
    error = ConfigError("trainer.precision", "fp8", "must be one of bf16, fp32")
    assert str(error) == "trainer.precision='fp8': must be one of bf16, fp32"
    assert isinstance(error, ArcforgeError)


def test_an_unknown_component_prints_its_message_without_quotes():
    assert str(UnknownComponentError("no attention 'x'")) == "no attention 'x'"


def test_nearest_suggests_only_what_is_near():
    assert nearest("muon_splitt", ["muon", "muon_split"]) == "; did you mean 'muon_split'?"
    assert nearest("zebra", ["muon", "muon_split"]) == ""
