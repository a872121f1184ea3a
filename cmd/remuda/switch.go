package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/planner"
)

func (p *program) switchVerbs() map[string]verb {
	return map[string]verb{
		"switch list":  p.asking(switchList),
		"switch set":   p.asking(switchSet),
		"switch unset": p.asking(switchUnset),
	}
}

// switches are those that the controller looks at.
var switches = []string{planner.PauseReconcile}

var switchList = question{
	synopsis: "List the switches that are set",
	about:    `Lists the settings that operators changed while the controller runs, as pause-reconcile.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		switches, _, err := c.Switches(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(list(switches), func() error {
			if len(switches) == 0 {
				fmt.Fprintln(c.out, "No switch is set.")
				return nil
			}
			t := newTable(c.out, "NAME", "VALUE")
			for _, s := range switches {
				t.row(s.Name, s.Value)
			}
			return t.flush()
		})
	},
}

var switchSet = question{
	synopsis: "Set a switch",
	about:    `Sets a switch, as "remuda switch set pause-reconcile true", which has the controller change nothing until it is unset.`,
	args:     []string{"NAME", "VALUE"},
	run: func(ctx context.Context, c *asker, args []string) error {
		s, err := c.SetSwitch(ctx, args[0], api.SwitchRequest{Value: args[1]})
		if err != nil {
			return err
		}
		return c.print(s, func() error {
			fmt.Fprintf(c.out, "%s is %s.\n", s.Name, s.Value)
			if !slices.Contains(switches, s.Name) {
				fmt.Fprintf(c.out, "This version looks at no switch of that name: it knows %s.\n", strings.Join(switches, ", "))
			}
			return nil
		})
	},
}

var switchUnset = question{
	synopsis: "Take a switch away",
	about:    `Takes a switch away, so that the default holds again. One that is not set is no error.`,
	args:     []string{"NAME"},
	run: func(ctx context.Context, c *asker, args []string) error {
		if err := c.DeleteSwitch(ctx, args[0]); err != nil {
			return err
		}
		return c.done("%s is not set.\n", args[0])
	},
}
