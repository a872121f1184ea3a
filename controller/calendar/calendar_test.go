package calendar_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/calendar"
)

const office = `timezone = "Europe/Berlin"

window "holidays" {
  dates     = ["12-24..01-01", "2026-05-14"]
  dedicated = {}
}

window "office" {
  days      = ["mon-fri"]
  from      = "08:00"
  to        = "18:00"
  dedicated = { "llama-3-70b" = 4, embed = 1 }
}

window "night" {
  from      = "22:00"
  to        = "06:00"
  dedicated = { "batch" = 8 }
}

default {
  dedicated = { "llama-3-8b" = 1 }
}
`

func parse(t *testing.T, src string) calendar.Calendar {
	t.Helper()
	c, err := calendar.Parse([]byte(src), "cal.hcl")
	require.NoError(t, err)
	return c
}

func TestAt(t *testing.T) {
	c := parse(t, office)
	zone := c.Zone()
	require.Equal(t, "Europe/Berlin", zone.String())
	for _, tc := range []struct{ at, window, until string }{
		{"2026-03-02 07:59", "default", "2026-03-02 08:00"}, // a Monday
		{"2026-03-02 08:00", "office", "2026-03-02 18:00"},
		{"2026-03-02 17:59", "office", "2026-03-02 18:00"},
		{"2026-03-02 18:00", "default", "2026-03-02 22:00"},
		{"2026-03-02 22:00", "night", "2026-03-03 06:00"},
		{"2026-03-03 05:59", "night", "2026-03-03 06:00"},
		{"2026-03-03 06:00", "default", "2026-03-03 08:00"},
		{"2026-03-07 12:00", "default", "2026-03-07 22:00"},  // a Saturday
		{"2026-05-14 12:00", "holidays", "2026-05-15 00:00"}, // a Thursday
		{"2026-12-23 23:00", "night", "2026-12-24 00:00"},    // the first that matches wins
		{"2026-12-24 00:00", "holidays", "2027-01-02 00:00"}, // over the new year
		{"2027-01-01 23:59", "holidays", "2027-01-02 00:00"},
		{"2027-01-02 00:00", "night", "2027-01-02 06:00"}, // began on a holiday
	} {
		at, err := time.ParseInLocation("2006-01-02 15:04", tc.at, zone)
		require.NoError(t, err)
		// The timezone of the question does not matter.
		window, _, until := c.At(at.UTC())
		require.Equal(t, tc.window, window, tc.at)
		require.Equal(t, tc.until, until.In(zone).Format("2006-01-02 15:04"), tc.at)
	}
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, zone)
	_, models, _ := c.At(at)
	require.Equal(t, map[string]int{"llama-3-70b": 4, "embed": 1}, models)
	models["embed"] = 7
	_, models, _ = c.At(at)
	require.Equal(t, 1, models["embed"], "the map is the caller's own")
	require.Equal(t, []calendar.Use{
		{Window: "office", Model: "llama-3-70b", Replicas: 4, Line: 12, Column: 17},
		{Window: "office", Model: "embed", Replicas: 1, Line: 12, Column: 36},
		{Window: "night", Model: "batch", Replicas: 8, Line: 18, Column: 17},
		{Window: "default", Model: "llama-3-8b", Replicas: 1, Line: 22, Column: 17},
	}, c.Uses())
}

// The clock of Berlin went from 02:00 to 03:00 on 2026-03-29 (01:00 UTC), and from 03:00
// back to 02:00 on 2026-10-25 (01:00 UTC).
func TestDaylightSaving(t *testing.T) {
	for name, tc := range map[string]struct{ day, from, to, begins, ends string }{
		"a usual day":                     {"2026-03-28", "02:00", "04:00", "2026-03-28T01:00", "2026-03-28T03:00"},
		"an hour shorter":                 {"2026-03-29", "01:00", "04:00", "2026-03-29T00:00", "2026-03-29T02:00"},
		"begins in the hour left out":     {"2026-03-29", "02:30", "04:00", "2026-03-29T01:00", "2026-03-29T02:00"},
		"ends in the hour left out":       {"2026-03-29", "01:00", "02:30", "2026-03-29T00:00", "2026-03-29T01:00"},
		"an hour longer":                  {"2026-10-25", "01:00", "04:00", "2026-10-24T23:00", "2026-10-25T03:00"},
		"begins in the hour passed twice": {"2026-10-25", "02:30", "04:00", "2026-10-25T00:30", "2026-10-25T03:00"},
		"ends in the hour passed twice":   {"2026-10-25", "01:00", "02:30", "2026-10-24T23:00", "2026-10-25T00:30"},
		"is the hour passed twice":        {"2026-10-25", "02:00", "03:00", "2026-10-25T00:00", "2026-10-25T02:00"},
		"through the night of the change": {"2026-10-24", "22:00", "06:00", "2026-10-24T20:00", "2026-10-25T05:00"},
		"the whole day":                   {"2026-10-25", "00:00", "24:00", "2026-10-24T22:00", "2026-10-25T23:00"},
	} {
		t.Run(name, func(t *testing.T) {
			c := parse(t, fmt.Sprintf(`
timezone = "Europe/Berlin"
window "w" {
  dates     = [%q]
  from      = %q
  to        = %q
  dedicated = { m = 1 }
}`, tc.day, tc.from, tc.to))
			const layout = "2006-01-02T15:04"
			begins, err := time.Parse(layout, tc.begins)
			require.NoError(t, err)
			window, models, until := c.At(begins.Add(-time.Second))
			require.Equal(t, "default", window)
			require.Empty(t, models)
			require.Equal(t, tc.begins, until.UTC().Format(layout))
			window, _, until = c.At(begins)
			require.Equal(t, "w", window)
			require.Equal(t, tc.ends, until.UTC().Format(layout))
			window, _, until = c.At(until)
			require.Equal(t, "default", window)
			require.Zero(t, until, "there is no other such day")
		})
	}
	c := parse(t, `
timezone = "Europe/Berlin"
window "gone" {
  dates     = ["2026-03-29"]
  from      = "02:10"
  to        = "02:50"
  dedicated = { m = 1 }
}`)
	_, _, until := c.At(time.Date(2026, 3, 29, 0, 30, 0, 0, time.UTC))
	require.Zero(t, until, "the clock leaves the window out")
}

func TestZonesThatChangeAtMidnight(t *testing.T) {
	for _, tc := range []struct{ zone, day, begins, ends string }{
		// 2018-11-04 began at 01:00 in São Paulo.
		{"America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00", "2018-11-05T02:00"},
		// 2018-02-17 ended twice there: at 24:00 it was 23:00 again.
		{"America/Sao_Paulo", "2018-02-18", "2018-02-18T03:00", "2018-02-19T03:00"},
		// There was no 2011-12-30 in Samoa.
		{"Pacific/Apia", "2011-12-29", "2011-12-29T10:00", "2011-12-30T10:00"},
		{"Pacific/Apia", "2011-12-31", "2011-12-30T10:00", "2011-12-31T10:00"},
	} {
		c := parse(t, fmt.Sprintf("timezone = %q\nwindow \"w\" {\n dates = [%q]\n dedicated = {}\n}", tc.zone, tc.day))
		const layout = "2006-01-02T15:04"
		begins, err := time.Parse(layout, tc.begins)
		require.NoError(t, err)
		_, _, until := c.At(begins.Add(-time.Minute))
		require.Equal(t, tc.begins, until.UTC().Format(layout), "%s %s", tc.zone, tc.day)
		window, _, until := c.At(begins)
		require.Equal(t, "w", window)
		require.Equal(t, tc.ends, until.UTC().Format(layout), "%s %s", tc.zone, tc.day)
	}
	c := parse(t, "timezone = \"Pacific/Apia\"\nwindow \"w\" {\n dates = [\"2011-12-30\"]\n dedicated = {}\n}")
	_, _, until := c.At(time.Date(2011, 12, 28, 0, 0, 0, 0, time.UTC))
	require.Zero(t, until, "there was no such day")
}

func TestDatesAndDays(t *testing.T) {
	in := func(src string, at time.Time) bool {
		c := parse(t, "timezone = \"UTC\"\nwindow \"w\" {\n"+src+"\n dedicated = {}\n}")
		window, _, _ := c.At(at.Add(12 * time.Hour))
		return window == "w"
	}
	day := func(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }
	require.True(t, in(`days = ["sat-mon"]`, day(2026, 3, 1)), "a Sunday, over the end of the week")
	require.False(t, in(`days = ["sat-mon"]`, day(2026, 3, 3)))
	require.True(t, in(`days = ["wed", "fri-sat"]`, day(2026, 3, 6)))
	require.True(t, in(`dates = ["02-29"]`, day(2028, 2, 29)))
	require.False(t, in(`dates = ["02-29"]`, day(2027, 3, 1)))
	require.True(t, in(`dates = ["2026-03-01..2026-03-05"]`, day(2026, 3, 5)))
	require.False(t, in(`dates = ["2026-03-01..2026-03-05"]`, day(2027, 3, 5)))
	both := "days = [\"fri\"]\n dates = [\"12-01..12-31\"]"
	require.True(t, in(both, day(2026, 12, 4)))
	require.False(t, in(both, day(2026, 12, 5)))
	require.False(t, in(both, day(2026, 11, 27)))
}

func TestZeroCalendarHasNothing(t *testing.T) {
	window, models, until := calendar.Calendar{}.At(time.Now())
	require.Equal(t, calendar.Default, window)
	require.Empty(t, models)
	require.Zero(t, until)
}

func TestEveryFaultIsNamed(t *testing.T) {
	_, err := calendar.Parse([]byte(`timezone = "Mars/Olympus"
window "office" {
  days      = ["mon-fry", 3]
  dates     = ["2026-02-30", "12-24..2027-01-01", "2026-02-02..2026-02-01", "1999-01-01"]
  from      = "8:00"
  to        = "25:00"
  dedicated = { "a" = 0, "b" = "2", "a" = 1, "c" = 1.5 }
}
window "office" {
  days      = []
  from      = "09:00"
  to        = "09:00"
  dedicated = [1]
}
window "default" {
  from = "24:00"
}
window "a b" {
  days      = "mon"
  colour    = 1
  to        = "00:00"
  dedicated = {}
}
default {
  dedicated = {}
}
default {
  dedicated = null
}
`), "cal.hcl")
	require.ErrorIs(t, err, calendar.ErrInvalid)
	want := []string{
		`cal.hcl:1:12: timezone is "Mars/Olympus": must be a name from the time zone database, such as "Europe/Berlin" or "UTC"`,
		`cal.hcl:3:16: window "office": days: number 1 is "mon-fry": must be "mon", "tue", "wed", "thu", "fri", "sat" or "sun", or a range of two, such as "mon-fri"`,
		`cal.hcl:3:27: window "office": days: number 2 is 3: must be a string`,
		`cal.hcl:4:16: window "office": dates: number 1 is "2026-02-30": must be a date, such as "2026-12-24" or, for every year, "12-24", or a range of two with ".." between them`,
		`cal.hcl:4:30: window "office": dates: number 2 is "12-24..2027-01-01": must have a year in both dates, or in neither`,
		`cal.hcl:4:51: window "office": dates: number 3 is "2026-02-02..2026-02-01": must have the earlier date first`,
		`cal.hcl:4:77: window "office": dates: number 4 is "1999-01-01": must have a year from 2000 to 2999`,
		`cal.hcl:5:15: window "office": from is "8:00": must be a time from "00:00" to "24:00"`,
		`cal.hcl:6:15: window "office": to is "25:00": must be a time from "00:00" to "24:00"`,
		`cal.hcl:7:23: window "office": dedicated: model "a" is 0: must be a whole number from 1 to 1000; leave the model out for none`,
		`cal.hcl:7:32: window "office": dedicated: model "b" is "2": must be a whole number from 1 to 1000; leave the model out for none`,
		`cal.hcl:7:37: window "office": dedicated: duplicate model "a": first set on line 7`,
		`cal.hcl:7:52: window "office": dedicated: model "c" is 1.5: must be a whole number from 1 to 1000; leave the model out for none`,
		`cal.hcl:9:8: duplicate window "office": first defined on line 2`,
		`cal.hcl:10:15: window "office": days is empty: must be days of the week, such as ["mon-fri"]; leave it out for every day`,
		`cal.hcl:12:15: window "office": from and to are both "09:00": must differ; leave both out for the whole day`,
		`cal.hcl:13:15: window "office": dedicated is a list: must be replica counts by model, such as { "llama-3-8b" = 2 }, or {} for none`,
		`cal.hcl:15:1: window "default": dedicated is missing: must be replica counts by model, such as { "llama-3-8b" = 2 }, or {} for none`,
		`cal.hcl:15:8: window: name is "default": reserved for the time outside of all windows: use another name`,
		`cal.hcl:16:10: window "default": from is "24:00": must be at most "23:59"`,
		`cal.hcl:18:8: window: name is "a b": must be at most 63 letters, digits, '.', '_' and '-', with a letter or digit first and last, such as "office"`,
		`cal.hcl:19:15: window "a b": days is "mon": must be a list of days of the week, such as ["mon-fri"]`,
		`cal.hcl:20:3: unsupported argument: An argument named "colour" is not expected here.`,
		`cal.hcl:21:15: window "a b": from and to are both "00:00": must differ; leave both out for the whole day`,
		`cal.hcl:27:1: duplicate default block: first defined on line 24`,
		`cal.hcl:28:15: default: dedicated is null: must be replica counts by model, such as { "llama-3-8b" = 2 }, or {} for none`,
	}
	require.Equal(t, strings.Join(want, "\n"), err.Error())
}

func TestWholeFileFaults(t *testing.T) {
	for src, want := range map[string]string{
		"":                   `cal.hcl:1:1: timezone is missing`,
		"timezone = \"UTC\"": `cal.hcl:1:1: no window: at least one block is required`,
		"timezone = \"Local\"\ndefault {\n dedicated = {}\n}":         `timezone is "Local": must be a name`,
		"timezone = 3\ndefault {\n dedicated = {}\n}":                 `timezone is 3: must be a name`,
		"timezone = zone\ndefault {\n dedicated = {}\n}":              `timezone is not a constant: must be a name from the time zone database, such as "Europe/Berlin" or "UTC"`,
		"timezone = \"UTC\"\ndefault {\n dedicated = { \"\" = 1 }\n}": `cal.hcl:3:16: default: dedicated: name is "": must be a model's name`,
		"timezone = ":       `cal.hcl:1:12: missing expression`,
		"office \"x\" {\n}": `unsupported block type`,
		"timezone = " + strings.Repeat("(", 200_000):                `cal.hcl:1:212: nested too deeply: must be at most 200 levels of brackets`,
		strings.Repeat("#", calendar.MaxFile+1):                     `file is 262145 bytes: must be at most 262144`,
		"timezone = \"UTC\"\n" + manyWindows(calendar.MaxWindows+1): `window 257 of the file: must be at most 256`,
	} {
		_, err := calendar.Parse([]byte(src), "cal.hcl")
		require.ErrorContains(t, err, want)
	}
}

func manyWindows(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "window \"w%d\" {\n  days = [\"mon\"]\n dates = [\"01-01\"]\n dedicated = {}\n}\n", i)
	}
	return b.String()
}

// FuzzCalendar holds At to what it says: nothing changes before until, and at until
// another window has its turn.
func FuzzCalendar(f *testing.F) {
	f.Add(office, int64(1_774_746_000))
	f.Add("timezone = \"America/St_Johns\"\nwindow \"a\" {\n days = [\"sun\"]\n from = \"23:30\"\n to = \"00:30\"\n dedicated = { m = 1 }\n}", int64(1_162_700_000))
	f.Add("timezone = \"Australia/Lord_Howe\"\nwindow \"a\" {\n from = \"01:45\"\n to = \"02:15\"\n dedicated = {}\n}", int64(1_775_300_000))
	f.Add("timezone = \"Pacific/Apia\"\nwindow \"a\" {\n dates = [\"12-30\"]\n dedicated = {}\n}", int64(1_325_200_000))
	f.Fuzz(func(t *testing.T, src string, unix int64) {
		c, err := calendar.Parse([]byte(src), "cal.hcl")
		if err != nil {
			require.ErrorIs(t, err, calendar.ErrInvalid)
			return
		}
		at := time.Unix(unix%(1<<33), 0)
		window, models, until := c.At(at)
		if until.IsZero() {
			later, _, _ := c.At(at.Add(calendar.Horizon - 72*time.Hour))
			require.Equal(t, window, later)
			return
		}
		require.True(t, until.After(at))
		for _, part := range []time.Duration{1, 2, 3} {
			between := at.Add(until.Sub(at) / 4 * part)
			w, m, u := c.At(between)
			require.Equal(t, window, w, "at %s", between)
			require.Equal(t, models, m)
			require.True(t, u.Equal(until), "%s: %s, and later %s", between, until, u)
		}
		w, _, _ := c.At(until.Add(-time.Second))
		require.Equal(t, window, w)
		w, _, _ = c.At(until)
		require.NotEqual(t, window, w)
	})
}
