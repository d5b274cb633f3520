"""DailyMobility: one day of a Beijing resident in 48 half-hour slots. Source: docs/design.md,
section 9."""
