package main

import (
	"context"
	"fmt"
	"strings"

	"remuda/controller/api"
)

// gatewayVerbs are those about gateways that run; `remuda gateway` itself is one.
func (p *program) gatewayVerbs() map[string]verb {
	return map[string]verb{
		"gateway list":  p.asking(gatewayList),
		"gateway drain": p.asking(gatewayDrain),
	}
}

var gatewayList = question{
	synopsis: "List the gateways that report",
	about:    `Lists the gateways that follow the controller and report to it, with what they have waiting and in flight.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		gateways, err := c.Gateways(ctx)
		if err != nil {
			return err
		}
		return c.print(list(gateways), func() error {
			if len(gateways) == 0 {
				fmt.Fprintln(c.out, "No gateway reports to the controller.")
				return nil
			}
			at := now()
			t := newTable(c.out, "NAME", "STATUS", "IN FLIGHT", "WAITING", "INDEX", "SINCE", "SEEN")
			for _, g := range gateways {
				t.row(g.Name, gatewayStatus(g), g.InFlight, g.Waiting, g.Index, age(g.Since, at), age(g.Seen, at)+" ago")
			}
			return t.flush()
		})
	},
}

// gatewayStatus is a few words for what a gateway is at.
func gatewayStatus(g api.Gateway) string {
	switch {
	case g.Draining:
		return "draining"
	case g.DrainOrdered:
		return "told to drain"
	}
	return "serving"
}

// findGateway finds a gateway by its name or the beginning of it.
func (c *asker) findGateway(ctx context.Context, arg string) (api.Gateway, error) {
	gateways, err := c.Gateways(ctx)
	if err != nil {
		return api.Gateway{}, err
	}
	var found []api.Gateway
	var names []string
	for _, g := range gateways {
		if g.Name == arg {
			return g, nil
		}
		if strings.HasPrefix(g.Name, arg) {
			found, names = append(found, g), append(names, g.Name)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return api.Gateway{}, fmt.Errorf("no gateway %q reports: `remuda gateway list` shows which do", arg)
	}
	return api.Gateway{}, fmt.Errorf("%q may be any of %s: give more of it", arg, strings.Join(names, ", "))
}
