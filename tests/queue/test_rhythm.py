"""When ticks are: intervals from the epoch, cron expressions by the clock on the wall."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import InvalidArgument
from holdfast.client.schedules import Rhythm, cron, cron_rule, every, every_rule, rhythm_of

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(rhythm: Rhythm, start: str, count: int, tz: Any = UTC) -> list[str]:
    """Return some ticks from an instant on, as the clock on the wall shows them."""
    found, at = [], ms(start)
    for _ in range(count):
        tick = rhythm(at)
        assert tick is not None
        assert tick > at
        found.append(datetime.fromtimestamp(tick / 1000, tz).strftime("%d %H:%M:%S %z"))
        at = tick
    return found


# ------------------------------------------------------------------------------ intervals


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("5m", ["16 09:30:00", "16 09:35:00"]),
        ("30s", ["16 09:27:30", "16 09:28:00"]),
        ("1h 30m", ["16 10:30:00", "16 12:00:00"]),
        ("1.5s", ["16 09:27:01", "16 09:27:03"]),
        ("1d", ["17 00:00:00", "18 00:00:00"]),
        (3600, ["16 10:00:00", "16 11:00:00"]),
        (timedelta(hours=6), ["16 12:00:00", "16 18:00:00"]),
    ],
)
def test_an_interval_is_counted_from_the_epoch(interval: Any, expected: list[str]) -> None:
    found = ticks(every(interval), "2026-11-16T09:27:00+00:00", 2)
    assert found == [f"{tick} +0000" for tick in expected]


def test_a_week_begins_on_a_thursday_as_the_epoch_did() -> None:
    tick = every("1w")(ms("2026-11-16T09:27:00+00:00"))
    assert tick == ms("2026-11-19T00:00:00+00:00")


@given(st.integers(0, 2**42), st.integers(1000, 10**9))
def test_who_asks_at_any_time_is_told_the_same_ticks(at: int, interval: int) -> None:
    rhythm = every(interval / 1000)
    tick = rhythm(at)
    assert tick
    assert at < tick <= at + interval
    assert rhythm(tick - 1) == tick
    assert rhythm(tick) == tick + interval


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ("5", "text such as '30s', '5m'"),
        ("5 minutes", "text such as"),
        ("", "text such as"),
        ("m5", "text such as"),
        ("-5m", "text such as"),
        ("0.5s", "at least 1 second"),
        (0, "at least 1 second"),
        (0.999, "at least 1 second"),
        (timedelta(milliseconds=5), "at least 1 second"),
        ("101y", "text such as"),
        ("99999d", "at most 100 years"),
        (-5, "interval must be 0 or more seconds"),
        (float("nan"), "interval must be"),
        (None, "interval must be seconds"),
        (True, "interval must be seconds"),
        (b"5m", "interval must be seconds"),
    ],
)
def test_what_is_no_interval_is_refused(interval: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        every(interval)


# ------------------------------------------------------------------------ cron expressions


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["17 03:00:00", "18 03:00:00"]),
        ("*/20 * * * *", ["16 09:40:00", "16 10:00:00"]),
        ("0 9 * * mon-fri", ["17 09:00:00", "18 09:00:00"]),
        ("0 0 1 jan *", ["01 00:00:00", "01 00:00:00"]),
        ("0 12 l * *", ["30 12:00:00", "31 12:00:00"]),
        ("*/15 * * * * *", ["16 09:27:15", "16 09:27:30"]),
    ],
)
def test_a_cron_expression_ticks_when_it_says(expression: str, expected: list[str]) -> None:
    found = ticks(cron(expression, "UTC"), "2026-11-16T09:27:00+00:00", 2)
    assert found == [f"{tick} +0000" for tick in expected]


def test_a_cron_expression_is_of_a_time_zone() -> None:
    rhythm = cron("0 3 * * *", "Europe/Berlin")
    assert rhythm(ms("2026-07-01T00:00:00+00:00")) == ms("2026-07-01T01:00:00+00:00")
    assert rhythm(ms("2026-12-01T00:00:00+00:00")) == ms("2026-12-01T02:00:00+00:00")
    assert cron("0 3 * * *", BERLIN)(0) == rhythm(0)


def test_a_time_that_is_left_out_comes_right_after() -> None:
    """On 29 March 2026 the clocks of Berlin went from 02:00 to 03:00."""
    found = ticks(cron("30 2 * * *", BERLIN), "2026-03-28T00:00:00+01:00", 3, BERLIN)
    assert found == ["28 02:30:00 +0100", "29 03:00:00 +0200", "30 02:30:00 +0200"]


def test_a_time_that_comes_twice_counts_once() -> None:
    """On 25 October 2026 the clocks of Berlin went from 03:00 to 02:00."""
    found = ticks(cron("30 2 * * *", BERLIN), "2026-10-24T00:00:00+02:00", 3, BERLIN)
    assert found == ["24 02:30:00 +0200", "25 02:30:00 +0200", "26 02:30:00 +0100"]
    # Also for who asks within the hour that comes a second time.
    again = cron("30 2 * * *", BERLIN)(ms("2026-10-25T02:15:00+01:00"))
    assert again == ms("2026-10-26T02:30:00+01:00")


def test_what_ticks_all_the_time_does_not_care_for_the_clock_on_the_wall() -> None:
    rhythm = cron("*/30 * * * *", BERLIN)
    for start in ("2026-03-29T00:00:00+00:00", "2026-10-25T00:00:00+00:00"):
        at = ms(start)
        for n in range(1, 7):
            assert rhythm(at + (n - 1) * 1_800_000) == at + n * 1_800_000


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("* * * *", "Wrong number of fields.*give minute, hour, day of the month"),
        ("61 * * * *", "Bad minute"),
        ("* 25 * * *", "Bad hour"),
        ("", "Wrong number of fields"),
        ("a b c d e", "Bad minute"),
        ("0 0 31 2 *", "Bad day-of-month"),
        ("0 0 */20 * 1L", "never matches"),
        (None, "must be a str"),
        (5, "must be a str"),
    ],
)
def test_what_is_no_cron_expression_is_refused(expression: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        cron(expression, "UTC")


@pytest.mark.parametrize("tz", ["Berlin", "", "/etc/passwd", "../UTC", "Europe/", None, 5, "a\0b"])
def test_what_is_no_time_zone_is_refused(tz: Any) -> None:
    with pytest.raises(InvalidArgument, match="tz "):
        cron("* * * * *", tz)


def test_after_the_last_year_there_is_no_tick() -> None:
    assert cron("* * * * *", "UTC")(ms("9999-12-31T23:59:30+00:00")) is None
    assert cron("* * * * *", "UTC")(2**53) is None


# -------------------------------------------------------------------------------- nicknames


NICKNAMES = {
    "@yearly": "2027-01-01T00:00:00",
    "@annually": "2027-01-01T00:00:00",
    "@monthly": "2026-12-01T00:00:00",
    "@weekly": "2026-11-22T00:00:00",
    "@daily": "2026-11-17T00:00:00",
    "@midnight": "2026-11-17T00:00:00",
    "@hourly": "2026-11-16T10:00:00",
}


@pytest.mark.parametrize(("name", "expected"), NICKNAMES.items())
def test_cron_knows_the_usual_nicknames(name: str, expected: str) -> None:
    start = ms("2026-11-16T09:27:00+00:00")
    assert cron(name, "UTC")(start) == ms(f"{expected}+00:00")
    assert cron(f" {name.upper()} ", UTC)(start) == ms(f"{expected}+00:00")


@pytest.mark.parametrize(("name", "expected"), NICKNAMES.items())
def test_an_interval_can_be_a_nickname_in_utc(name: str, expected: str) -> None:
    assert every(name)(ms("2026-11-16T09:27:00+00:00")) == ms(f"{expected}+00:00")


def test_a_nickname_means_the_clock_on_the_wall_of_its_time_zone() -> None:
    daily = cron("@daily", "Europe/Berlin")
    assert ticks(daily, "2026-10-24T12:00:00+02:00", 2, BERLIN) == [
        "25 00:00:00 +0200",
        "26 00:00:00 +0100",
    ]


@pytest.mark.parametrize("name", ["@reboot", "@every 5m", "@fortnightly", "@", "@ daily"])
def test_a_nickname_that_is_none_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(InvalidArgument, match="@hourly, @daily"):
        cron(name, "UTC")
    with pytest.raises(InvalidArgument, match="@hourly, @daily"):
        every(name)


# ------------------------------------------------------------------------------ as text


@pytest.mark.parametrize(
    ("interval", "rule"),
    [
        ("5m", "every 5m"),
        ("1h  30m", "every 1h 30m"),
        (1.5, "every 1.5s"),
        (timedelta(days=100), "every 8640000s"),
        ("@daily", "@daily UTC"),
    ],
)
def test_the_rule_of_an_interval_can_be_read_again(interval: Any, rule: str) -> None:
    assert every_rule(interval) == rule
    start = ms("2026-11-16T09:27:00+00:00")
    assert rhythm_of(rule)(start) == every(interval)(start)


@pytest.mark.parametrize("tz", ["Europe/Berlin", BERLIN, UTC])
@pytest.mark.parametrize("expression", ["0 3 * *  mon-fri", "30 0 3 * * *", "@weekly"])
def test_the_rule_of_a_cron_expression_can_be_read_again(expression: str, tz: Any) -> None:
    rule = cron_rule(expression, tz)
    assert "  " not in rule
    start = ms("2026-11-16T09:27:00+00:00")
    assert rhythm_of(rule)(start) == cron(expression, tz)(start)


def test_a_rule_in_a_time_zone_of_the_programs_own_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is unknown: give a name"):
        rhythm_of(cron_rule("0 3 * * *", timezone(timedelta(hours=2))))
