package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
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
not count for the majority. WAITING FOR is why it does not become a voter yet.`,
	run: func(ctx context.Context, c *apiClient, _ []string) error {
		// A stale read also works without a leader.
		cfg, _, err := c.RaftConfiguration(ctx, api.QueryOptions{Stale: true})
		if err != nil {
			return err
		}
		return c.print(cfg, func() error {
			t := newTable(c.out, "ID", "ADDRESS", "STATE", "VOTER", "FEATURE LEVEL", "WAITING FOR")
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
				t.row(s.ID, s.Address, state, voter, level, cmp.Or(s.PromotionBlocked, "-"))
			}
			return t.flush()
		})
	},
}

var raftPromote = apiCommand{
	synopsis: "Make a server a voter",
	about: `Makes a non-voter a voter at once. Use it for a server that the leader does not expect, because
its address is not in the leader's setting "join". A server that has not caught up is rejected.`,
	args: []string{"ID"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		if err := c.PromotePeer(ctx, args[0]); err != nil {
			return err
		}
		return c.done("Server %s is a voter.\n", args[0])
	},
}

var raftRemovePeer = apiCommand{
	synopsis: "Remove a server from the cluster",
	about: `Removes a server from the cluster, so that it no longer counts for the majority. Use it for a
server that will not come back, not for one that restarts.`,
	args: []string{"ID"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		if err := c.RemovePeer(ctx, args[0]); err != nil {
			return err
		}
		return c.done("Removed server %s from the cluster.\n", args[0])
	},
}

var raftTransferLeader = apiCommand{
	synopsis: "Transfer leadership to another server",
	about:    `Transfers leadership to the server with this ID, or to any other.`,
	args:     []string{"[ID]"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		id := ""
		if len(args) > 0 {
			id = args[0]
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
