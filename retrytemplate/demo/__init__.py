"""The main job of ``retrytemplate demo``: a real file, a real HTTP service, a real database."""
