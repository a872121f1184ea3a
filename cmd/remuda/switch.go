package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/state"
)

func (p *program) switchVerbs() map[string]verb {
	return map[string]verb{
		"switch list":  p.apiVerb(switchList),
		"switch set":   p.apiVerb(switchSet),
		"switch unset": p.apiVerb(switchUnset),
	}
}

// switchHelp lists the switches, one a line.
func switchHelp() string {
	var b strings.Builder
	for _, s := range state.SwitchTypes {
		fmt.Fprintf(&b, "\n  %-27s%s: %s", s.Usage(), s.Values, s.About)
	}
	return b.String()
}

// aboutSwitch returns a warning if the switch is for a model that does not exist.
func (c *apiClient) aboutSwitch(ctx context.Context, name string) (string, error) {
	_, model, forModel := strings.Cut(name, "/")
	if !forModel {
		return "", nil
	}
	models, _, err := c.Models(ctx, api.QueryOptions{})
	if err != nil || slices.ContainsFunc(models, func(m api.ModelSummary) bool { return m.Name == model }) {
		return "", err
	}
	return fmt.Sprintf("Warning: model %q does not exist: the switch has no effect until it does.", model), nil
}

var switchList = apiCommand{
	synopsis: "List the switches that are set",
	about:    "Lists the switches that are set: settings that operators change at run time. Known switches:\n" + switchHelp(),
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		switches, meta, err := c.Switches(ctx, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(switches), func() error {
			if len(switches) == 0 {
				fmt.Fprintln(c.out, "No switches are set.")
				return nil
			}
			t := c.table("NAME", "VALUE")
			for _, s := range switches {
				t.row(s.Name, s.Value)
			}
			return t.flush()
		})
	},
}

var switchSet = apiCommand{
	synopsis: "Set a switch",
	about: "Sets a switch. For example, \"remuda switch set pause-reconcile true\" pauses the controller until the\nswitch is unset.\n" +
		"\nKnown switches:\n" + switchHelp(),
	args: []string{"SWITCH", "VALUE"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		s, err := c.SetSwitch(ctx, args[0], api.SwitchRequest{Value: args[1]})
		if err != nil {
			return err
		}
		return c.print(s, func() error {
			fmt.Fprintf(c.out, "%s = %s\n", s.Name, s.Value)
			about, err := c.aboutSwitch(ctx, s.Name)
			if about != "" {
				fmt.Fprintln(c.out, about)
			}
			return err
		})
	},
}

var switchUnset = apiCommand{
	synopsis: "Unset a switch",
	about:    `Unsets a switch, so that its default applies again. It is not an error if the switch is not set.`,
	args:     []string{"SWITCH"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		switches, _, err := c.Switches(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		if err := c.DeleteSwitch(ctx, args[0]); err != nil {
			return err
		}
		if !slices.ContainsFunc(switches, func(s api.Switch) bool { return s.Name == args[0] }) {
			return c.done("%s was not set.\n", args[0])
		}
		return c.done("%s unset.\n", args[0])
	},
}
