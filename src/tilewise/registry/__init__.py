"""MLflow: runs, model versions, aliases, and the gate that guards ``@production``."""
