// Package ledger asks the GPU memory service of a node what each of its sockets
// holds, for statistics and for people.
//
// It guarantees to be quick and harmless: it takes no lock (the service answers
// state requests without a session), every socket has the same short time to
// answer whatever the others do, and a socket that is dead, stopped or speaks
// nonsense is a line in the answer and no error.
package ledger

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"remuda/device-plugin/gms/client"
)

// Timeout is how long a socket has to answer. A healthy service answers within
// a millisecond.
const Timeout = 300 * time.Millisecond

// maxSockets bounds how many sockets are asked: 16 GPUs with a few tags each
// are far below it, a directory of leftovers is not.
const maxSockets = 256

// State is what one socket answered.
type State struct {
	// GPU and Tag are what the socket serves, by its name.
	GPU, Tag string
	// Err is why the rest is unknown, empty if it is known.
	Err string
	// Lock is the state of the lock: EMPTY, RW, COMMITTED or RO.
	Lock string
	// Committed says that a layout is there to be read.
	Committed bool
	// Writer says that one is writing, Readers how many read and Waiting how
	// many writers wait.
	Writer           bool
	Readers, Waiting uint64
	// Allocations is how many allocations the layout has.
	Allocations uint64
}

// SocketName is the name of a GPU's socket for a tag.
func SocketName(gpu, tag string) string { return "gms_" + gpu + "_" + tag + ".sock" }

// ParseSocketName is the reverse of SocketName.
func ParseSocketName(name string) (gpu, tag string, ok bool) {
	name, ok = strings.CutPrefix(name, "gms_")
	if !ok {
		return "", "", false
	}
	if name, ok = strings.CutSuffix(name, ".sock"); !ok {
		return "", "", false
	}
	// UUIDs have no underscore and tags may: the first one parts them.
	gpu, tag, ok = strings.Cut(name, "_")
	// A file may be called anything; labels and messages must be UTF-8.
	return gpu, tag, ok && gpu != "" && tag != "" && utf8.ValidString(name)
}

// Read asks every socket of a directory. The answer is in the order of GPU and
// tag. A directory that is not there holds no sockets. The error is only that
// the directory cannot be read.
func Read(ctx context.Context, dir string) ([]State, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list GMS sockets: %w", err)
	}
	var states []State
	for _, e := range entries {
		if gpu, tag, ok := ParseSocketName(e.Name()); ok && len(states) < maxSockets {
			states = append(states, State{GPU: gpu, Tag: tag})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var asking sync.WaitGroup
	for i := range states {
		asking.Go(func() {
			s := &states[i]
			r, err := client.RuntimeState(ctx, filepath.Join(dir, SocketName(s.GPU, s.Tag)))
			if err != nil {
				s.Err = err.Error()
				return
			}
			s.Lock, s.Committed, s.Writer = r.State, r.Committed, r.HasRWSession
			s.Readers, s.Waiting, s.Allocations = r.ROSessionCount, r.WaitingWriters, r.AllocationCount
		})
	}
	asking.Wait()
	slices.SortFunc(states, func(a, b State) int { return strings.Compare(a.GPU+"_"+a.Tag, b.GPU+"_"+b.Tag) })
	return states, nil
}
