from hypothesis import settings

# A deadline measures how busy the machine is, not the code.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
