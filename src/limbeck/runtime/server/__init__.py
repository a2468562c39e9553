"""Serve an exported model over HTTP: batches that form by themselves, a bounded queue, and a page to try it."""
