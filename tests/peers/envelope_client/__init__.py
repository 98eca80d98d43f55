"""Scripts that run in the environments of OpenAI's and MLflow's clients."""
