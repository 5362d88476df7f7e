"""What holds for every test."""

from hypothesis import Phase, settings

settings.register_profile("no clocks", deadline=None)  # machines are shared and noisy
settings.register_profile(
    "first failure",  # whether there is one: nobody reads the smallest example
    parent=settings.get_profile("no clocks"),
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
settings.load_profile("no clocks")
