//! `strftime_now`: the date and time, in UTC.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Formats a time in UTC as C's `strftime` does. Unknown directives stay as they are.
pub(super) fn strftime(format: &str, time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let twelve = if hour.is_multiple_of(12) { 12 } else { hour % 12 };
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let mut text = String::new();
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let plain = characters.next_if_eq(&'-').is_some();
        let width = if plain { 0 } else { 2 };
        let directive = characters.next();
        let _ = match directive {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:0width$}", year % 100),
            Some('m') => write!(text, "{month:0width$}"),
            Some('d') => write!(text, "{day:0width$}"),
            Some('e') => write!(text, "{day:width$}"),
            Some('H') => write!(text, "{hour:0width$}"),
            Some('I') => write!(text, "{twelve:0width$}"),
            Some('M') => write!(text, "{minute:0width$}"),
            Some('S') => write!(text, "{:0width$}", second % 60),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('B') => write!(text, "{month_name}"),
            Some('b' | 'h') => write!(text, "{}", &month_name[..3]),
            Some('A') => write!(text, "{day_name}"),
            Some('a') => write!(text, "{}", &day_name[..3]),
            Some('j') => write!(text, "{:03}", days - days_before(year) + 1),
            Some('F') => write!(text, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(text, "{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => Ok(()),
            Some('%') | None => write!(text, "%"),
            Some(other) => write!(text, "%{}{other}", if plain { "-" } else { "" }),
        };
    }
    text
}

/// Days from the start of 1970 to the start of a year.
fn days_before(year: u64) -> u64 {
    let before = year - 1;
    year * 365 - 1970 * 365 + (before / 4 - before / 100 + before / 400)
        - (1969 / 4 - 1969 / 100 + 1969 / 400)
}

/// Year, month and day of a number of days since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut rest = days - days_before(year);
    for (month, length) in
        [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate()
    {
        if rest < length {
            return (year, month as u64 + 1, rest + 1);
        }
        rest -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_gregorian_calendar() {
        let at = |seconds| {
            strftime(
                "%Y-%m-%d %H:%M:%S %a %d %b %Y %j %-d %I %p %% %q",
                UNIX_EPOCH + Duration::from_secs(seconds),
            )
        };
        assert_eq!(at(0), "1970-01-01 00:00:00 Thu 01 Jan 1970 001 1 12 AM % %q");
        assert_eq!(at(951_825_600), "2000-02-29 12:00:00 Tue 29 Feb 2000 060 29 12 PM % %q");
        assert_eq!(at(1_721_952_000 + 82_799), "2024-07-26 22:59:59 Fri 26 Jul 2024 208 26 10 PM % %q");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 Mon 01 Mar 2100 060 1 12 AM % %q");
        assert_eq!(at(1_767_225_599), "2025-12-31 23:59:59 Wed 31 Dec 2025 365 31 11 PM % %q");
    }
}
