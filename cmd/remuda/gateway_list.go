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
		"gateway list":  p.apiVerb(gatewayList),
		"gateway drain": p.apiVerb(gatewayDrain),
	}
}

var gatewayList = apiCommand{
	synopsis: "List the gateways",
	about:    `Lists the gateways that report to the controller, with their waiting and running requests.`,
	show: func(ctx context.Context, c *apiClient, _ []string, _ api.QueryOptions) (api.QueryMeta, error) {
		gateways, err := c.Gateways(ctx)
		if err != nil {
			return api.QueryMeta{}, err
		}
		return api.QueryMeta{}, c.print(list(gateways), func() error {
			if len(gateways) == 0 {
				fmt.Fprintln(c.out, "No gateways report to the controller.")
				return nil
			}
			at := now()
			t := c.table("NAME", "STATUS", "IN FLIGHT", "WAITING", "+INDEX", "SINCE", "SEEN")
			for _, g := range gateways {
				t.row(g.Name, gatewayStatus(g), g.InFlight, g.Waiting, g.Index, age(g.Since, at), age(g.LastReportAt, at)+" ago")
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
		return "ordered to drain"
	}
	return "serving"
}

// findGateway finds a gateway by its name or the beginning of it.
func (c *apiClient) findGateway(ctx context.Context, arg string) (api.Gateway, error) {
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
		return api.Gateway{}, fmt.Errorf("gateway %q does not report to the controller: see \"remuda gateway list\"", arg)
	}
	return api.Gateway{}, ambiguous(arg, names)
}
