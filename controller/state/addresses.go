package state

import (
	"fmt"
	"slices"
	"strings"
)

// MaxAddresses is how many addresses a replica may have. An allocation has a few ports for each of
// its engines.
const MaxAddresses = 256

// SetAddresses records where the engines of replicas may be, as Nomad says. Gateways send requests
// nowhere else.
type SetAddresses struct {
	Replicas []ReplicaAddresses
}

// ReplicaAddresses are where the engines of one replica may be.
type ReplicaAddresses struct {
	Replica string
	// Addresses and Generation are as of Replica.
	Addresses  []string
	Generation uint64
}

// Type implements Command.
func (*SetAddresses) Type() Type { return TypeSetAddresses }

// Level implements the method that package raft asks for; see Level.
func (*SetAddresses) Level() int { return levelAddresses }

// apply ignores replicas that are gone or COLD by now. The ModifyIndex stays: an observation makes
// no decision about the replica outdated.
func (c *SetAddresses) apply(t *txn) *Error {
	for _, one := range c.Replicas {
		if err := one.check(); err != nil {
			return badRequest(one.Replica, "replica %s: %v", one.Replica, err)
		}
		old := first[Replica](t.Txn, TableReplicas, byID, one.Replica)
		if old == nil || old.Status == StatusCold || old.Generation == one.Generation && slices.Equal(old.Addresses, one.Addresses) {
			continue
		}
		r := *old
		r.Addresses, r.Generation = one.Addresses, one.Generation
		t.put(TableReplicas, &r)
	}
	return nil
}

func (a ReplicaAddresses) check() error {
	if len(a.Addresses) > MaxAddresses {
		return fmt.Errorf("%d addresses: must be at most %d", len(a.Addresses), MaxAddresses)
	}
	for _, address := range a.Addresses {
		if colon := strings.LastIndexByte(address, ':'); colon < 1 || colon == len(address)-1 {
			return fmt.Errorf("address is %q: must be host:port", address)
		}
	}
	return nil
}
