"""Ascend's operators on the fake chip: ``torch.ops.npu.*`` by torch_npu's public schemas, over the references."""
