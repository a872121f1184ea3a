package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"remuda/controller/api"
)

var agentHealth = apiCommand{
	synopsis: "Check the health of a controller",
	about: `Checks that a server belongs to a cluster with a leader, and that it can reach Nomad and
Consul. Without a token, if one is required, only the former is known. The exit code is 0 if
it is healthy and 1 if not.`,
	run: func(ctx context.Context, c *apiClient, _ []string) error {
		h, err := c.AgentHealth(ctx)
		var refused *api.Error
		if errors.As(err, &refused) && refused.Status == http.StatusUnauthorized {
			if err := c.Ready(ctx); err != nil {
				return err
			}
			return c.print(api.AgentHealth{Healthy: true, Problems: []string{}}, func() error {
				_, err := fmt.Fprintln(c.out, "healthy: it knows the cluster's leader (with a token, its connections to Nomad and Consul are checked as well)")
				return err
			})
		}
		if err != nil {
			return err
		}
		h.Problems = list(h.Problems)
		err = c.print(h, func() error {
			if h.Healthy {
				fmt.Fprintln(c.out, "healthy")
			} else {
				fmt.Fprintln(c.out, "not healthy")
			}
			for _, p := range h.Problems {
				fmt.Fprintf(c.out, "  %s\n", p)
			}
			return nil
		})
		if err == nil && !h.Healthy {
			return exitError{exitFailed}
		}
		return err
	},
}

var agentInfo = apiCommand{
	synopsis: "Show the status of a controller",
	about: `Shows one server: its ID, whether it is the leader, its Raft index, its connections to Nomad
and Consul, and the gateways that report to it.`,
	show: func(ctx context.Context, c *apiClient, _ []string, _ api.QueryOptions) (api.QueryMeta, error) {
		a, err := c.AgentSelf(ctx)
		if err != nil {
			return api.QueryMeta{}, err
		}
		return api.QueryMeta{}, c.print(a, func() error { return c.showAgent(a) })
	},
}

func (c *apiClient) showAgent(a api.AgentSelf) error {
	f := c.fields()
	f.set("ID", a.ID)
	f.set("Version", a.Version)
	f.set("Raft address", a.Address)
	f.set("Leads", yes(a.Leader))
	f.set("Leader known", yes(a.KnownLeader))
	f.set("Index", a.Index)
	f.set("ACL", map[bool]string{true: "enabled", false: "disabled"}[a.ACL.Enabled])
	if a.ACL.Enabled && !a.ACL.Bootstrapped {
		f.set("First token", "missing: run \"remuda acl bootstrap\"")
	}
	f.set("Nomad", linkText(a.Reconcile.Active, a.Reconcile.Nomad))
	f.set("Consul", linkText(a.Reconcile.Active, a.Reconcile.Consul))
	f.setIf("Last error", a.Reconcile.LastError)
	if err := f.flush(); err != nil || len(a.Gateways) == 0 {
		return err
	}
	fmt.Fprintln(c.out, "\nGateways")
	at := now()
	t := c.table("NAME", "INDEX", "SEEN")
	for _, g := range a.Gateways {
		t.row(g.Name, g.Index, age(g.LastReportAt, at)+" ago")
	}
	return t.flush()
}

func linkText(active bool, l api.LinkStatus) string {
	switch {
	case !active:
		return "connected on the leader only"
	case l.Known:
		return "up to date"
	case l.Error != "":
		return "unreachable: " + l.Error
	}
	return "no contact yet"
}
