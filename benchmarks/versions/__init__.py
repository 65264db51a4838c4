"""How fast one checkout of hvdtrain is, beside another one."""
