package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
)

func (p *program) raftVerbs() map[string]verb {
	return map[string]verb{
		"raft list-peers":      p.apiVerb(raftListPeers),
		"raft promote":         p.apiVerb(raftPromote),
		"raft remove-peer":     p.apiVerb(raftRemovePeer),
		"raft transfer-leader": p.apiVerb(raftTransferLeader),
	}
}

var raftListPeers = apiCommand{
	synopsis: "List the servers of the cluster",
	about: `Lists the controller's servers. A server that joins is a non-voter: it has the state and does
not count for the majority. LEVEL is its feature level, and WAITING FOR is why it does not become a
voter yet.`,
	show: func(ctx context.Context, c *apiClient, _ []string, _ api.QueryOptions) (api.QueryMeta, error) {
		// A stale read also works without a leader.
		cfg, _, err := c.RaftConfiguration(ctx, api.QueryOptions{Stale: true})
		if err != nil {
			return api.QueryMeta{}, err
		}
		return api.QueryMeta{}, c.print(cfg, func() error {
			t := c.table("ID", "ADDRESS", "STATE", "VOTER", "LEVEL", "WAITING FOR")
			for _, s := range cfg.Servers {
				state, voter, level := "follower", "no", "unknown"
				if s.Leader {
					state = "leader"
				}
				if s.Voter {
					voter = "yes"
				}
				if s.FeatureLevel > 0 {
					level = strconv.Itoa(s.FeatureLevel)
				}
				t.row(c.shortID(s.ID), s.Address, state, voter, level, cmp.Or(s.PromotionBlocked, "-"))
			}
			return t.flush()
		})
	},
}

var raftPromote = apiCommand{
	synopsis: "Make a server a voter",
	about: `Makes a non-voter a voter at once. Use it for a server that the leader does not expect, because
its address is not in the leader's setting "join". A server that has not caught up is rejected.`,
	args: []string{"SERVER"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		id, err := c.findServer(ctx, args[0])
		if err != nil {
			return err
		}
		if err := c.PromotePeer(ctx, id); err != nil {
			return err
		}
		return c.done("Server %s is a voter.\n", id)
	},
}

var raftRemovePeer = apiCommand{
	synopsis: "Remove a server from the cluster",
	about: `Removes a server from the cluster, so that it no longer counts for the majority. Use it for a
server that will not come back, not for one that restarts. It is given by its ID, or by a unique
prefix of it.`,
	args: []string{"SERVER"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		id, err := c.findServer(ctx, args[0])
		if err != nil {
			return err
		}
		if err := c.RemovePeer(ctx, id); err != nil {
			return err
		}
		return c.done("Removed server %s from the cluster.\n", id)
	},
}

var raftTransferLeader = apiCommand{
	synopsis: "Transfer leadership to another server",
	about:    `Transfers leadership to this server, or to any other.`,
	args:     []string{"[SERVER]"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		id := ""
		if len(args) > 0 {
			var err error
			if id, err = c.findServer(ctx, args[0]); err != nil {
				return err
			}
		}
		before, err := c.Leader(ctx)
		if err != nil {
			return err
		}
		if err := c.TransferLeadership(ctx, id); err != nil {
			return err
		}
		leader, err := c.newLeader(ctx, before)
		if err != nil {
			return err
		}
		return c.print(leader, func() error {
			if leader.ID == "" {
				fmt.Fprintln(c.out, "Leadership transferred. The new leader is not known yet.")
				return nil
			}
			fmt.Fprintf(c.out, "The leader is %s at %s.\n", leader.ID, leader.Address)
			return nil
		})
	},
}

// findServer returns the ID of a server that is arg, or the only one that begins with it.
func (c *apiClient) findServer(ctx context.Context, arg string) (string, error) {
	cfg, _, err := c.RaftConfiguration(ctx, api.QueryOptions{Stale: true})
	if err != nil {
		return "", err
	}
	var found []string
	for _, s := range cfg.Servers {
		if s.ID == arg {
			return arg, nil
		}
		if strings.HasPrefix(s.ID, arg) {
			found = append(found, s.ID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("no server %q: see \"remuda raft list-peers\"", arg)
	}
	return "", ambiguous(arg, found)
}

// newLeader polls a server for the leader until it reports another one than before, for as long as
// an election may take. It returns an empty status if it reports none by then.
func (c *apiClient) newLeader(ctx context.Context, before api.LeaderStatus) (api.LeaderStatus, error) {
	for patience := time.After(5 * time.Second); ; {
		leader, err := c.Leader(ctx)
		if err != nil || leader.ID != "" && leader.ID != before.ID {
			return leader, err
		}
		select {
		case <-ctx.Done():
			return api.LeaderStatus{}, ctx.Err()
		case <-patience:
			return api.LeaderStatus{}, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
