"""Huawei's Ascend NPUs. Nothing here has run on one."""
