package calendar

import (
	"fmt"
	"strings"
	"time"
)

// date is a day of the calendar, with no timezone.
type date struct {
	year  int
	month time.Month
	day   int
}

func dateOf(t time.Time, zone *time.Location) date {
	y, m, d := t.In(zone).Date()
	return date{y, m, d}
}

func (d date) midnightUTC() time.Time { return time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC) }
func (d date) weekday() time.Weekday  { return d.midnightUTC().Weekday() }

// plus returns the day that is so many days later.
func (d date) plus(days int) date {
	return dateOf(time.Date(d.year, d.month, d.day+days, 0, 0, 0, 0, time.UTC), time.UTC)
}

func (d date) before(e date) bool { return d.midnightUTC().Before(e.midnightUTC()) }

// dates are the days from one to another, both of them in it. Where yearly is set, the
// years are 0 and it is so every year; from may then be after to, over the new year.
type dates struct {
	from, to date
	yearly   bool
}

func (r dates) has(d date) bool {
	if !r.yearly {
		return !d.before(r.from) && !r.to.before(d)
	}
	n, from, to := monthDay(d), monthDay(r.from), monthDay(r.to)
	if from <= to {
		return from <= n && n <= to
	}
	return n >= from || n <= to
}

func monthDay(d date) int { return int(d.month)*100 + d.day }

const wantDates = "must be a date, such as \"2026-12-24\" or, for every year, \"12-24\", or a range of two with \"..\" between them"

// parseDates reads "2026-12-24", "12-24", and two of either with ".." between them.
func parseDates(s string) (dates, error) {
	first, second, isRange := strings.Cut(s, "..")
	from, yearly, err := parseDate(first)
	if err != nil {
		return dates{}, err
	}
	if !isRange {
		return dates{from, from, yearly}, nil
	}
	to, toYearly, err := parseDate(second)
	switch {
	case err != nil:
		return dates{}, err
	case yearly != toYearly:
		return dates{}, fmt.Errorf("must have a year in both dates, or in neither")
	case !yearly && to.before(from):
		return dates{}, fmt.Errorf("must have the earlier date first")
	}
	return dates{from, to, yearly}, nil
}

// parseDate reads a day. The 29th of February without a year is that of leap years.
func parseDate(s string) (d date, yearly bool, err error) {
	yearly = len(s) == len("01-02")
	full := s
	if yearly {
		full = "2024-" + s // a leap year
	}
	t, err := time.Parse(time.DateOnly, full)
	if err != nil {
		return date{}, false, fmt.Errorf("%s", wantDates)
	}
	d = dateOf(t, time.UTC)
	if yearly {
		return date{0, d.month, d.day}, true, nil
	}
	if d.year < 2000 || d.year > 2999 {
		return date{}, false, fmt.Errorf("must have a year from 2000 to 2999")
	}
	return d, false, nil
}

var weekdays = [7]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// parseDays reads "mon" and "mon-fri", also over the end of the week, as "sat-mon".
func parseDays(s string, into *[7]bool) error {
	first, second, isRange := strings.Cut(s, "-")
	from := weekday(first)
	to := from
	if isRange {
		to = weekday(second)
	}
	if from < 0 || to < 0 {
		return fmt.Errorf("must be %s, or a range of two, such as \"mon-fri\"", quotedList(append(weekdays[1:], weekdays[0])))
	}
	for d := from; ; d = (d + 1) % 7 {
		into[d] = true
		if d == to {
			return nil
		}
	}
}

func weekday(s string) int {
	for i, w := range weekdays {
		if s == w {
			return i
		}
	}
	return -1
}

func quotedList(words []string) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i == 0:
		case i == len(words)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", w)
	}
	return b.String()
}

// parseClock reads a time of the day, from "00:00" to "24:00".
func parseClock(s string) (time.Duration, error) {
	bad := fmt.Errorf("must be a time from \"00:00\" to \"24:00\"")
	if len(s) != len("15:04") || s[2] != ':' {
		return 0, bad
	}
	for _, i := range []int{0, 1, 3, 4} {
		if s[i] < '0' || s[i] > '9' {
			return 0, bad
		}
	}
	h, m := int(s[0]-'0')*10+int(s[1]-'0'), int(s[3]-'0')*10+int(s[4]-'0')
	if m > 59 || h > 24 || h == 24 && m > 0 {
		return 0, bad
	}
	return time.Duration(h)*time.Hour + time.Duration(m)*time.Minute, nil
}
