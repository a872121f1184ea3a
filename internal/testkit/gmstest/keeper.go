package gmstest

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/keeper"
)

// Keeper keeps records in this process. It implements gms.Keeper.
type Keeper struct {
	lost chan struct{}

	mu      sync.Mutex // guards what is below
	changed chan struct{}
	records map[string]record
	// hangs: calls wait, until their contexts end if need be. gone: likewise, and
	// nothing is there any more.
	hangs, gone bool
	refuses     bool
	// saves and drops count calls that were done.
	saves, drops int
	// waiting counts calls that wait.
	waiting int
}

type record struct {
	blob []byte
	fds  []int
}

// NewKeeper is empty.
func NewKeeper() *Keeper {
	return &Keeper{lost: make(chan struct{}, 1), changed: make(chan struct{}), records: map[string]record{}}
}

// change has calls that wait look again. mu is held.
func (k *Keeper) change() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// Hang stops the keeper, or has it go on.
func (k *Keeper) Hang(hangs bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hangs = hangs
	k.change()
}

// Refuse has it refuse to save, or not.
func (k *Keeper) Refuse(refuses bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuses = refuses
}

// Kill ends the keeper: what it had is gone.
func (k *Keeper) Kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.records {
		k.drop(name)
	}
	k.gone = true
	k.change()
}

// Start has an empty keeper come in the place of one that was killed.
func (k *Keeper) Start() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = false
	k.change()
	select {
	case k.lost <- struct{}{}:
	default:
	}
}

// Has tells whether there is a record, and how many descriptors it has.
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

// Counts are how many saves and drops were done.
func (k *Keeper) Counts() (saves, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saves, k.drops
}

// Waiting is how many calls wait for the keeper to go on.
func (k *Keeper) Waiting() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting
}

// Close gives up all descriptors.
func (k *Keeper) Close() { k.Kill() }

func (k *Keeper) drop(name string) {
	for _, fd := range k.records[name].fds {
		_ = unix.Close(fd)
	}
	delete(k.records, name)
}

// ready waits until the keeper can do something, and leaves mu locked then.
func (k *Keeper) ready(ctx context.Context) error {
	for {
		k.mu.Lock()
		if !k.hangs && !k.gone {
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
func (k *Keeper) Save(ctx context.Context, name string, blob []byte, fds []int) error {
	if err := k.ready(ctx); err != nil {
		return err
	}
	defer k.mu.Unlock()
	if k.refuses {
		return &keeper.RefusedError{Reason: "there is no room"}
	}
	own, err := duplicate(fds)
	if err != nil {
		return err
	}
	k.drop(name)
	k.records[name] = record{bytes.Clone(blob), own}
	k.saves++
	return nil
}

// Drop forgets a record.
func (k *Keeper) Drop(ctx context.Context, name string) error {
	if err := k.ready(ctx); err != nil {
		return err
	}
	defer k.mu.Unlock()
	k.drop(name)
	k.drops++
	return nil
}

// Load returns a record.
func (k *Keeper) Load(ctx context.Context, name string) (blob []byte, fds []int, found bool, err error) {
	if err := k.ready(ctx); err != nil {
		return nil, nil, false, err
	}
	defer k.mu.Unlock()
	r, found := k.records[name]
	if !found {
		return nil, nil, false, nil
	}
	fds, err = duplicate(r.fds)
	return bytes.Clone(r.blob), fds, err == nil, err
}

// Lost tells that everything has to be saved again.
func (k *Keeper) Lost() <-chan struct{} { return k.lost }

// Gone tells that no keeper is there.
func (k *Keeper) Gone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gone
}

func duplicate(fds []int) (out []int, err error) {
	for _, fd := range fds {
		own, dupErr := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err = errors.Join(err, dupErr); dupErr == nil {
			out = append(out, own)
		}
	}
	return out, err
}
