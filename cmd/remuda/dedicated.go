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
		"dedicated set":      p.asking(dedicatedSet),
		"dedicated show":     p.asking(dedicatedShow),
		"dedicated clear":    p.asking(dedicatedClear),
		"dedicated schedule": p.dedicatedScheduleVerb(),
	}
}

var dedicatedSet = question{
	synopsis: "Dedicate models, in the place of those that are",
	about: `Makes a new dedicated set: each of its models has at least so many replicas, which nothing evicts. It replaces the set
before: models that are not in it any more fall back to their min. With a schedule it holds until the schedule's
next change. Models whose files say "dedicated = true" are dedicated all the same.`,
	args: []string{"MODEL=REPLICAS..."},
	run: func(ctx context.Context, c *asker, args []string) error {
		models, err := assignments("MODEL=REPLICAS", args)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(models)) {
			if models[name] == 0 {
				return usagef("%s=0: want at least 1 replica; leave the model out for none", name)
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
			return nil, usagef("%q: want %s, as llama-3-8b=2", arg, what)
		}
		name := arg[:i]
		n, err := strconv.Atoi(arg[i+1:])
		if err != nil || n < 0 {
			return nil, usagef("%q: the number is %q: want a number from 0", arg, arg[i+1:])
		}
		if _, dup := out[name]; dup {
			return nil, usagef("%q: model %q is there twice: want each once", arg, name)
		}
		out[name] = n
	}
	return out, nil
}

var dedicatedShow = question{
	synopsis: "Show the dedicated set",
	about:    `Shows which models are dedicated for now by the set, who set that, and when the schedule changes it.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		d, _, err := c.Dedicated(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(d, func() error { return c.showDedicated(d) })
	},
}

func (c *asker) showDedicated(d api.Dedicated) error {
	f := newFields(c.out)
	if d.Source == "" {
		f.set("Set by", "nobody yet")
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
		fmt.Fprintln(c.out, "\nNo model is dedicated by the set.")
		return nil
	}
	fmt.Fprintln(c.out)
	return c.setTable(d.Models)
}

func (c *asker) setTable(models map[string]int) error {
	t := newTable(c.out, "MODEL", "REPLICAS AT LEAST")
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

var dedicatedClear = question{
	synopsis: "Take the dedicated set away",
	about:    `Takes the dedicated set away: its models fall back to their min. With a schedule that holds until its next change.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		d, err := c.ClearDedicated(ctx)
		if err != nil {
			return err
		}
		return c.print(d, func() error { return c.showDedicated(d) })
	},
}

func (p *program) dedicatedScheduleVerb() verb {
	return p.asking(question{
		synopsis: "Set, show or delete the calendar that changes the dedicated set",
		about: `With a FILE ("-" is standard input), sets the calendar that changes the dedicated set by the time of day; without one
prints the calendar. -delete takes it away, and leaves the set as it is. As a file:

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

The first window that covers the time has it, and without one the default. A window whose to is not after its from
ends on the next day.`,
		args: []string{"[FILE]"},
		setup: func(fs *flag.FlagSet) answering {
			remove := fs.Bool("delete", false, "take the calendar away")
			return func(ctx context.Context, c *asker, args []string) error {
				switch {
				case *remove && len(args) > 0:
					return usagef("-delete takes the calendar away: leave %q out", args[0])
				case *remove:
					if err := c.DeleteDedicatedSchedule(ctx); err != nil {
						return err
					}
					return c.done("There is no schedule. The dedicated set stays as it is.\n")
				case len(args) == 0:
					return c.showSchedule(ctx)
				}
				return c.setSchedule(ctx, args[0], p.stdin)
			}
		},
	})
}

func (c *asker) showSchedule(ctx context.Context) error {
	s, _, err := c.DedicatedSchedule(ctx, api.QueryOptions{})
	if err != nil {
		return err
	}
	return c.print(s, func() error {
		if s.File == "" {
			fmt.Fprintln(c.out, "There is no schedule: `remuda dedicated schedule FILE` sets one.")
			return nil
		}
		_, err := fmt.Fprint(c.out, s.File)
		return err
	})
}

func (c *asker) setSchedule(ctx context.Context, path string, stdin io.Reader) error {
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
		return errors.New("the calendar is empty: -delete takes the schedule away")
	}
	// What is wrong with it is told without a controller, too.
	if _, err := calendar.Parse(raw, name); err != nil {
		return err
	}
	s, err := c.SetDedicatedSchedule(ctx, api.ScheduleRequest{File: string(raw), Filename: name})
	if err != nil {
		return err
	}
	return c.print(s, func() error {
		f := newFields(c.out)
		f.set("Timezone", s.Timezone)
		f.set("Window now", s.Window)
		f.set("Until", until(s.Until))
		if err := f.flush(); err != nil {
			return err
		}
		if len(s.Models) == 0 {
			fmt.Fprintln(c.out, "\nNo model is dedicated in it.")
			return nil
		}
		fmt.Fprintln(c.out)
		return c.setTable(s.Models)
	})
}
