// Package calendar reads the calendar that changes the dedicated set by the time of
// day, and tells which set holds at a time.
//
//	timezone = "Europe/Berlin"
//
//	window "holidays" {
//	  dates     = ["12-24..01-01", "2027-05-06"]
//	  dedicated = {}
//	}
//
//	window "office" {
//	  days      = ["mon-fri"]
//	  from      = "08:00"
//	  to        = "18:00"
//	  dedicated = { "llama-3-70b" = 4, "embed" = 1 }
//	}
//
//	window "night" {
//	  from      = "22:00"
//	  to        = "06:00" # of the next day
//	  dedicated = { "batch" = 8 }
//	}
//
//	default {
//	  dedicated = { "llama-3-8b" = 1 }
//	}
//
// The rules:
//
//   - The first window in the file that covers a moment has it. Where none does, the
//     default has it; without a default block nothing is dedicated then.
//   - days and dates say on which days a window begins; with both, a day must be in
//     both, and with neither it is every day. A date without a year is of every year.
//   - A window goes from from (left out: midnight) up to, and without, to (left out: the
//     end of the day). Where to is not after from, it is of the next day.
//   - Times are of the wall clock of the timezone. A time that the clock passes twice,
//     when it is set back, is the first of the two. A time that it leaves out, when it is
//     set forward, is the moment of the change. So windows that meet leave no gap and do
//     not overlap on any day.
//
// Everything here is pure. The timezone database is a part of the program.
package calendar
