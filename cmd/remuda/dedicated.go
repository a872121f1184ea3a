package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/calendar"
)

func (p *program) dedicatedVerbs() map[string]verb {
	return map[string]verb{
		"dedicated set":      p.apiVerb(dedicatedSet),
		"dedicated status":   p.apiVerb(dedicatedStatus),
		"dedicated clear":    p.apiVerb(dedicatedClear),
		"dedicated schedule": p.dedicatedScheduleVerb(),
	}
}

var dedicatedSet = apiCommand{
	synopsis: "Replace the set of dedicated models",
	about: `Replaces the dedicated set. Each model in it has at least the given number of replicas, and
nothing evicts them. Models that leave the set return to their scale. With a schedule, the
set is in effect until the schedule's next change. Models with "dedicated = true" in their
files are always dedicated.`,
	args: []string{"MODEL=REPLICAS..."},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		models, err := assignments("MODEL=REPLICAS", args)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(models)) {
			if models[name] == 0 {
				return usagef("%s=0: must be at least 1; leave the model out for none", name)
			}
		}
		d, err := c.SetDedicated(ctx, api.DedicatedRequest{Models: models})
		if err != nil {
			return err
		}
		return c.print(d, func() error { return c.showDedicated(d) })
	},
}

// assignments reads MODEL=NUMBER, each model once.
func assignments(what string, args []string) (map[string]int, error) {
	out := map[string]int{}
	for _, arg := range args {
		i := strings.LastIndexByte(arg, '=')
		if i <= 0 {
			return nil, usagef("%q: must be %s, such as llama-3-8b=2", arg, what)
		}
		name := arg[:i]
		n, err := strconv.Atoi(arg[i+1:])
		if err != nil || n < 0 {
			return nil, usagef("%q: number is %q: must be a whole number of 0 or more", arg, arg[i+1:])
		}
		if _, dup := out[name]; dup {
			return nil, usagef("%q: duplicate model %q", arg, name)
		}
		out[name] = n
	}
	return out, nil
}

var dedicatedStatus = apiCommand{
	synopsis: "Show the dedicated set",
	about:    `Shows the models in the dedicated set, who set it, and when the schedule changes it next.`,
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		d, meta, err := c.Dedicated(ctx, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(d, func() error { return c.showDedicated(d) })
	},
}

func (c *apiClient) showDedicated(d api.Dedicated) error {
	f := c.fields()
	if d.Source == "" {
		f.set("Set by", "-")
	} else {
		f.set("Set by", d.Source+", at "+clock(d.Since))
	}
	if d.Window != "" {
		f.set("Window now", d.Window)
		f.set("Until", until(d.Until))
	}
	if err := f.flush(); err != nil {
		return err
	}
	if len(d.Models) == 0 {
		fmt.Fprintln(c.out, "\nThe set has no models.")
		return nil
	}
	fmt.Fprintln(c.out)
	return c.setTable(d.Models)
}

func (c *apiClient) setTable(models map[string]int) error {
	t := c.table("MODEL", "MIN REPLICAS")
	for _, name := range slices.Sorted(maps.Keys(models)) {
		t.row(name, models[name])
	}
	return t.flush()
}

func until(t time.Time) string {
	if t.IsZero() {
		return fmt.Sprintf("no change within %d days", int(calendar.Horizon.Hours()/24))
	}
	return clock(t)
}

var dedicatedClear = apiCommand{
	synopsis: "Clear the dedicated set",
	about: `Clears the dedicated set: its models return to their scale. With a schedule, the set stays
empty until the schedule's next change.`,
	run: func(ctx context.Context, c *apiClient, _ []string) error {
		d, err := c.ClearDedicated(ctx)
		if err != nil {
			return err
		}
		return c.print(d, func() error { return c.showDedicated(d) })
	},
}

func (p *program) dedicatedScheduleVerb() verb {
	return p.apiVerb(apiCommand{
		synopsis: "Set, show or delete the calendar that changes the dedicated set",
		about: `With a FILE ("-" is standard input), sets the calendar that changes the dedicated set by the
time of day. Without a FILE, prints the calendar. -delete deletes it and leaves the set
unchanged. Example:

  timezone = "Europe/Berlin"

  window "holidays" {
    dates     = ["12-24..01-01", "2027-05-06"]
    dedicated = {}
  }

  window "office" {
    days      = ["mon-fri"]
    from      = "08:00"
    to        = "18:00"
    dedicated = { "llama-3-70b" = 4 }
  }

  default {
    dedicated = { "llama-3-8b" = 1 }
  }

The first window that covers the current time applies, otherwise the default. A window whose
"to" is not after its "from" ends on the next day.`,
		args: []string{"[FILE]"},
		setup: func(fs *flag.FlagSet) runFunc {
			remove := fs.Bool("delete", false, "delete the calendar")
			return func(ctx context.Context, c *apiClient, args []string) error {
				switch {
				case *remove && len(args) > 0:
					return usagef("-delete does not take a file: remove %q", args[0])
				case *remove:
					if err := c.DeleteDedicatedSchedule(ctx); err != nil {
						return err
					}
					return c.done("Deleted the schedule. The dedicated set is unchanged.\n")
				case len(args) == 0:
					return c.showSchedule(ctx)
				}
				return c.setSchedule(ctx, args[0], p.stdin)
			}
		},
	})
}

func (c *apiClient) showSchedule(ctx context.Context) error {
	s, _, err := c.DedicatedSchedule(ctx, api.QueryOptions{})
	if err != nil {
		return err
	}
	return c.print(s, func() error {
		if s.File == "" {
			fmt.Fprintln(c.out, "No schedule. Set one with \"remuda dedicated schedule FILE\".")
			return nil
		}
		_, err := fmt.Fprint(c.out, s.File)
		return err
	})
}

func (c *apiClient) setSchedule(ctx context.Context, path string, stdin io.Reader) error {
	name, in := path, stdin
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("read the calendar: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, calendar.MaxFile+1))
	if err != nil {
		return fmt.Errorf("read the calendar: %w", err)
	}
	if len(raw) == 0 {
		return errors.New("calendar is empty: use -delete to delete the schedule")
	}
	// Report its errors even without a controller.
	if _, err := calendar.Parse(raw, name); err != nil {
		return err
	}
	s, err := c.SetDedicatedSchedule(ctx, api.ScheduleRequest{File: string(raw), Filename: name})
	if err != nil {
		return err
	}
	return c.print(s, func() error {
		f := c.fields()
		f.set("Timezone", s.Timezone)
		f.set("Window now", s.Window)
		f.set("Until", until(s.Until))
		if err := f.flush(); err != nil {
			return err
		}
		if len(s.Models) == 0 {
			fmt.Fprintln(c.out, "\nThe current window dedicates no models.")
			return nil
		}
		fmt.Fprintln(c.out)
		return c.setTable(s.Models)
	})
}
