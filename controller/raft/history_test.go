package raft_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/testkit/long"
)

// access is one read or write of a register.
type access struct {
	write bool
	value string
}

// registers are rows that are written and read: a switch, which each write replaces, and a key, whose
// writes are compared with what they were made from.
var registers = []struct {
	write func(ctx context.Context, n *raft.Node, value string) error
	read  func(v *state.View) string
}{
	{
		func(ctx context.Context, n *raft.Node, value string) error {
			_, err := n.Apply(ctx, set("x", value))
			return err
		},
		func(v *state.View) string { return v.Switch(nil, "x") },
	},
	{
		func(ctx context.Context, n *raft.Node, value string) error {
			ask := state.UpsertKey{Name: state.KeyAnonymous, Limits: state.KeyLimits{Weight: 1, Models: []string{value}}, Time: time.Now()}
			cmd, refused := ask.Resolve(n.Store().View())
			if refused != nil {
				return refused
			}
			_, err := n.Apply(ctx, cmd)
			return err
		},
		func(v *state.View) string {
			if k := v.Key(nil, state.KeyAnonymous); k != nil {
				return k.Models[0]
			}
			return ""
		},
	},
}

// register is what a linearizable register would answer.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(held, in, out any) (bool, any) {
		a := in.(access)
		if a.write {
			return true, a.value
		}
		return out.(string) == held.(string), held
	},
}

// TestHistoryIsLinearizable writes and reads a switch and a key through all servers while
// leaders are cut off, handed over and restarted, and has the history checked: no
// acknowledged write is lost, and no read is stale that a majority confirmed before or after
// it. How much it gets done in its
// time depends on the machine; what it checks does not.
func TestHistoryIsLinearizable(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	var (
		mu      sync.Mutex // guards history, and the nodes of servers that are restarted
		nodes   sync.RWMutex
		history = make([][]porcupine.Operation, len(registers))
		wg      sync.WaitGroup
		over    atomic.Bool
		began   = time.Now()
		ends    = began.Add(time.Duration(long.Pick(3, 20)) * time.Second)
	)
	now := func() int64 { return int64(time.Since(began)) }
	for client := range 6 {
		wg.Go(func() {
			for i := 0; !over.Load(); i++ {
				nodes.RLock()
				node := c.servers[rand.IntN(3)].node
				nodes.RUnlock()
				which := rand.IntN(len(registers))
				of := registers[which]
				op := porcupine.Operation{ClientId: client, Input: access{}, Output: "", Call: now()}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				var err error
				switch rand.IntN(3) {
				case 0:
					a := access{write: true, value: fmt.Sprintf("%d-%d", client, i)}
					op.Input = a
					err = of.write(ctx, node, a.value)
				case 1:
					v, readErr := node.Read(ctx, raft.Verified)
					if err = readErr; err == nil {
						op.Output = of.read(v)
					}
				case 2: // What was read before a majority was asked counts as well.
					term, readErr := node.Established(ctx)
					if err = readErr; err == nil {
						op.Output = of.read(node.Store().View())
						time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // It may be deposed now.
						err = node.VerifyTerm(ctx, term)
					}
				}
				cancel()
				op.Return = now()
				if err != nil {
					time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) // Do not spin on a server that cannot.
					if !op.Input.(access).write || !errors.Is(err, raft.ErrUnknownOutcome) {
						continue
					}
					op.Return = int64(time.Hour) // It may count at any time after.
				}
				mu.Lock()
				history[which] = append(history[which], op)
				mu.Unlock()
			}
		})
	}
	for i := 0; i < 3 || time.Now().Before(ends); i++ {
		l := c.leader()
		time.Sleep(200 * time.Millisecond) // How long all is well.
		switch i % 3 {
		case 0:
			c.net.partition(l.name)
			time.Sleep(400 * time.Millisecond) // How long it is cut off.
			c.net.heal(l.name)
		case 1:
			if err := l.node.TransferLeadership(timeout(t, time.Second), ""); err != nil {
				t.Log(err)
			}
		case 2:
			node := l.node
			require.NoError(t, node.Close())
			fresh, err := raft.Open(l.config())
			require.NoError(t, err)
			nodes.Lock()
			l.node = fresh
			nodes.Unlock()
		}
	}
	over.Store(true)
	wg.Wait()
	for i, h := range history {
		require.NotEmpty(t, h)
		// A slow machine may not check all in its time, which is no fault of the history.
		got := porcupine.CheckOperationsTimeout(register, h, time.Minute)
		require.NotEqual(t, porcupine.Illegal, got, "register %d: %d operations", i, len(h))
		t.Logf("%d operations of register %d: %s", len(h), i, got)
	}
}
