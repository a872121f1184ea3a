package gmstest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/keeper"
	"remuda/internal/unixsock"
)

// Keeper keeps records in this process, over services that come and go. It implements
// gms.Keeper.
type Keeper struct {
	mu      sync.Mutex // guards what is below
	changed chan struct{}
	records map[string]record
	// hangs: calls wait.
	hangs   bool
	refuses bool
	// waiting counts calls that wait.
	waiting int
}

type record struct {
	blob []byte
	fds  []int
}

// NewKeeper is empty.
func NewKeeper() *Keeper {
	return &Keeper{changed: make(chan struct{}), records: map[string]record{}}
}

// Hang stops the keeper, or has it go on.
func (k *Keeper) Hang(hangs bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hangs = hangs
	close(k.changed)
	k.changed = make(chan struct{})
}

// Refuse has it refuse to save, or not.
func (k *Keeper) Refuse(refuses bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuses = refuses
}

// Has reports whether there is a record, and how many descriptors it has.
func (k *Keeper) Has(name string) (fds int, found bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, found := k.records[name]
	return len(r.fds), found
}

// Spoil changes a record's blob and descriptors.
func (k *Keeper) Spoil(name string, change func(blob []byte, fds []int) ([]byte, []int)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.records[name]
	r.blob, r.fds = change(r.blob, r.fds)
	k.records[name] = r
}

// Waiting is how many calls wait for the keeper to go on.
func (k *Keeper) Waiting() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting
}

// Records is what the next service is given; the descriptors are the caller's.
func (k *Keeper) Records() (out []keeper.Record, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.records)) {
		r := k.records[name]
		var fds []int
		for _, fd := range r.fds {
			own, dupErr := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err = errors.Join(err, dupErr); dupErr == nil {
				fds = append(fds, own)
			}
		}
		out = append(out, keeper.Record{Name: name, Blob: bytes.Clone(r.blob), FDs: fds})
	}
	return out, err
}

// Close gives up all descriptors.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.records {
		k.drop(name)
	}
}

func (k *Keeper) drop(name string) {
	unixsock.CloseAll(k.records[name].fds)
	delete(k.records, name)
}

// ready waits until the keeper can do something, and leaves mu locked then.
func (k *Keeper) ready(ctx context.Context) error {
	for {
		k.mu.Lock()
		if !k.hangs {
			return nil
		}
		changed := k.changed
		k.waiting++
		k.mu.Unlock()
		var err error
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-changed:
		}
		k.mu.Lock()
		k.waiting--
		k.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// Save stores a record.
func (k *Keeper) Save(ctx context.Context, name string, blob []byte, n int, export func(int) (int, error)) error {
	if err := k.ready(ctx); err != nil {
		return err
	}
	defer k.mu.Unlock()
	if k.refuses {
		return &keeper.RefusedError{Reason: "there is no room"}
	}
	var fds []int
	for i := range n {
		fd, err := export(i)
		if err != nil {
			unixsock.CloseAll(fds)
			return err
		}
		fds = append(fds, fd)
	}
	k.drop(name)
	k.records[name] = record{bytes.Clone(blob), fds}
	return nil
}

// Drop forgets a record.
func (k *Keeper) Drop(ctx context.Context, name string) error {
	if err := k.ready(ctx); err != nil {
		return err
	}
	defer k.mu.Unlock()
	k.drop(name)
	return nil
}
