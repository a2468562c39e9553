"""From a trained model to one in service: export, measure, predict."""
