// Package layout is the lock and the memory layout of one GPU and tag as a state
// machine (shared/reference: gms-wire-protocol, "Lock states"): plain data, no
// I/O, no goroutines, no clock, no logging. Waiting, memory and descriptors are
// the owner's. A Machine is not safe for concurrent use.
//
// What it promises, whatever is called in whatever order:
//   - There is at most one writer, and never a writer beside a reader. A writer
//     that waits goes before readers that come later.
//   - A lock is first offered (reserved for one session) and clears nothing; the
//     old layout is cleared when its new writer accepts.
//   - What a writer leaves behind without a commit is cleared before anybody else
//     is offered the lock.
//   - Allocation IDs never repeat, slots never repeat within a layout, and what
//     an error refuses has changed nothing.
package layout

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// SessionID names a session. The owner never uses one twice, and never 0.
type SessionID uint64

// Mode is a lock that is asked for or granted.
type Mode string

// The modes. Auto is Writer where nothing is committed, else Reader; it is asked
// for and never granted.
const (
	Writer Mode = "rw"
	Reader Mode = "ro"
	Auto   Mode = "auto"
)

// State is where a layout and its lock stand.
type State string

// The states.
const (
	Empty     State = "EMPTY"
	Writing   State = "RW"
	Committed State = "COMMITTED"
	Reading   State = "RO"
)

// Errors that the owner tells apart.
var (
	// ErrNoSession: the session has no lock (any more).
	ErrNoSession = errors.New("the session is over")
	// ErrNotAllowed: the session's mode does not allow it.
	ErrNotAllowed = errors.New("not allowed")
	// ErrNotFound: there is no such allocation.
	ErrNotFound = errors.New("unknown allocation")
	// ErrBadValue: a size or an offset is out of bounds.
	ErrBadValue = errors.New("bad value")
)

const (
	// MaxText bounds the bytes of tags, keys and metadata of a layout, with
	// Overhead for each allocation and each key, so that a client cannot fill the
	// memory of the server. A record of such a layout has at most 64 MiB.
	MaxText = 48 << 20
	// Overhead is more than an allocation or a key takes in a record beside its own
	// bytes, and about what it takes in memory.
	Overhead = 128
)

// Allocation is one piece of memory as clients know it.
type Allocation struct {
	ID string
	// Size is what was asked for, AlignedSize what was taken, in bytes.
	Size, AlignedSize uint64
	Tag               string
	// Slot counts the allocations of a layout from 0.
	Slot uint64
}

// Entry is one key of the metadata.
type Entry struct {
	AllocationID string
	// Offset is within the allocation, in bytes.
	Offset uint64
	Value  []byte
}

// Offer tells a session that the lock is reserved for it in a mode. The owner
// answers with Accept or Leave.
type Offer struct {
	Session SessionID
	Mode    Mode
}

// Effects are what the owner must do, Freed first.
type Effects struct {
	// Freed are allocations that no longer exist: their memory is to be released.
	Freed []Allocation
	// Offers go to sessions that waited.
	Offers []Offer
}

// Status is how the layout and its lock stand.
type Status struct {
	State       State
	HasWriter   bool
	Readers     int
	Waiting     int // writers that wait
	Committed   bool
	Allocations int
	// Hash is the committed layout's, "" without one.
	Hash string
}

// Ready tells whether readers are let in.
func (s Status) Ready() bool { return s.Committed && !s.HasWriter }

// Machine is the lock, the layout and the history of one GPU and tag.
type Machine struct {
	lock lock
	// newID makes an allocation's ID.
	newID func() string

	allocations []Allocation // by slot
	bySlot      map[string]uint64
	nextSlot    uint64
	metadata    map[string]Entry
	// text counts the bytes of tags, keys and values, and the overhead.
	text int
	// hash is the committed layout's.
	hash   string
	events history
}

// New starts with nothing. newID must never return the same string twice.
func New(newID func() string) *Machine {
	m := &Machine{newID: newID, lock: newLock()}
	m.clear()
	return m
}

// Snapshot is a layout as it is kept outside the process.
type Snapshot struct {
	Allocations []Allocation
	Metadata    map[string]Entry
	Hash        string
}

// Restore starts with a committed layout. It refuses a snapshot that is not whole
// or whose hash is not its own.
func Restore(newID func() string, s Snapshot) (*Machine, error) {
	m := New(newID)
	m.allocations = slices.Clone(s.Allocations)
	sort.Slice(m.allocations, func(i, j int) bool { return m.allocations[i].Slot < m.allocations[j].Slot })
	for i, a := range m.allocations {
		if _, twice := m.bySlot[a.ID]; twice || (i > 0 && m.allocations[i-1].Slot == a.Slot) || a.Size == 0 || a.AlignedSize < a.Size {
			return nil, fmt.Errorf("restore a layout: allocation %q of slot %d is there twice or has a bad size", a.ID, a.Slot)
		}
		m.bySlot[a.ID] = a.Slot
		m.nextSlot = a.Slot + 1
		m.text += Overhead + len(a.Tag)
	}
	for key, e := range s.Metadata {
		a, err := m.find(e.AllocationID)
		if err != nil || e.Offset >= a.AlignedSize {
			return nil, fmt.Errorf("restore a layout: metadata %q points outside of allocation %q", key, e.AllocationID)
		}
		m.metadata[key] = e
		m.text += cost(key, e.Value)
	}
	if hash := m.computeHash(); hash != s.Hash {
		return nil, fmt.Errorf("restore a layout: its hash is %q, and %q was kept with it", hash, s.Hash)
	}
	m.hash = s.Hash
	m.lock.committed = true
	return m, nil
}

// Status tells how things stand.
func (m *Machine) Status() Status {
	s := m.lock.status()
	s.Allocations, s.Hash = len(m.allocations), m.hash
	return s
}

// Events are the last events, the oldest first.
func (m *Machine) Events() []Event { return m.events.list() }

// Snapshot is the layout as it is. Its hash is the one that a commit gives it.
func (m *Machine) Snapshot() Snapshot {
	s := Snapshot{Allocations: slices.Clone(m.allocations), Metadata: make(map[string]Entry, len(m.metadata)), Hash: m.computeHash()}
	for key, e := range m.metadata {
		s.Metadata[key] = e
	}
	return s
}

// the lock

// Connect asks for the lock. The session waits until it is offered.
func (m *Machine) Connect(id SessionID, mode Mode) Effects {
	m.lock.wait(id, mode)
	return Effects{Offers: m.lock.offer()}
}

// GiveUp ends a session's wait, and tells whether it still waited: if not, it has
// been offered the lock, or is gone.
func (m *Machine) GiveUp(id SessionID) (bool, Effects) {
	if !m.lock.giveUp(id) {
		return false, Effects{}
	}
	return true, Effects{Offers: m.lock.offer()}
}

// Accepted is what a session has got.
type Accepted struct {
	Mode      Mode
	Committed bool
	// Hash is the committed layout's.
	Hash string
	// Cleared tells that a committed layout is no more.
	Cleared bool
}

// Accept opens a session that has been offered the lock. A writer's layout starts
// empty: what was there is freed.
func (m *Machine) Accept(id SessionID) (Accepted, Effects, error) {
	mode, err := m.lock.accept(id)
	if err != nil {
		return Accepted{}, Effects{}, err
	}
	if mode == Reader {
		return Accepted{Mode: Reader, Committed: true, Hash: m.hash}, Effects{}, nil
	}
	had := m.lock.committed
	m.lock.committed = false
	freed := m.clear()
	if had {
		m.events.add(EventCleared, len(freed))
	}
	m.events.add(EventConnected, 0)
	return Accepted{Mode: Writer, Cleared: had}, Effects{Freed: freed}, nil
}

// Leave ends a session, whether it waits, was offered the lock or has it. The
// layout of a writer that has not committed is cleared. A session that is over
// already changes nothing.
func (m *Machine) Leave(id SessionID) Effects {
	var e Effects
	if m.lock.leave(id) {
		e.Freed = m.clear()
		m.events.add(EventAborted, 0)
		m.events.add(EventCleared, len(e.Freed))
	}
	e.Offers = m.lock.offer()
	return e
}

// Commit publishes the writer's layout and ends its session.
func (m *Machine) Commit(id SessionID) (Effects, error) {
	if err := m.writer(id, "commit"); err != nil {
		return Effects{}, err
	}
	m.hash = m.computeHash()
	m.lock.commit()
	m.events.add(EventCommitted, 0)
	return Effects{Offers: m.lock.offer()}, nil
}

// Check tells whether a session may do what needs a lock: any lock, or the
// writer's. what names it in the error.
func (m *Machine) Check(id SessionID, needWriter bool, what string) error {
	switch mode := m.lock.mode(id); {
	case mode == "":
		return ErrNoSession
	case needWriter && mode != Writer:
		return fmt.Errorf("%w: %s needs a session of type rw, this one is %s", ErrNotAllowed, what, mode)
	default:
		return nil
	}
}

func (m *Machine) writer(id SessionID, what string) error { return m.Check(id, true, what) }

// the layout

// clear empties the layout and returns what was in it.
func (m *Machine) clear() []Allocation {
	freed := m.allocations
	m.allocations, m.bySlot, m.nextSlot = nil, map[string]uint64{}, 0
	m.metadata, m.text, m.hash = map[string]Entry{}, 0, ""
	return freed
}

// Align rounds a size up to a multiple of granularity.
func Align(size int64, granularity uint64) (uint64, error) {
	if size <= 0 {
		return 0, fmt.Errorf("%w: size is %d, must be more than 0", ErrBadValue, size)
	}
	return (uint64(size) + granularity - 1) / granularity * granularity, nil
}

// CanAllocate tells whether a session may allocate now, with a tag.
func (m *Machine) CanAllocate(id SessionID, tag string) error {
	if err := m.writer(id, "allocate"); err != nil {
		return err
	}
	return m.room(Overhead + len(tag))
}

// cost is what an entry of the metadata adds to text.
func cost(key string, value []byte) int { return Overhead + len(key) + len(value) }

// room tells whether so many more bytes of text fit.
func (m *Machine) room(n int) error {
	if m.text+n > MaxText {
		return fmt.Errorf("%w: the layout's tags, keys and metadata would be more than %d bytes, with %d for each allocation and key", ErrBadValue, MaxText, Overhead)
	}
	return nil
}

// OutOfMemory notes that a session could not allocate.
func (m *Machine) OutOfMemory(id SessionID) {
	if m.lock.mode(id) == Writer {
		m.events.add(EventOutOfMemory, len(m.allocations))
	}
}

// Allocate adds an allocation, for which there is memory.
func (m *Machine) Allocate(id SessionID, size, aligned uint64, tag string) (Allocation, error) {
	if err := m.CanAllocate(id, tag); err != nil {
		return Allocation{}, err
	}
	a := Allocation{ID: m.newID(), Size: size, AlignedSize: aligned, Tag: tag, Slot: m.nextSlot}
	m.nextSlot++
	m.allocations = append(m.allocations, a)
	m.bySlot[a.ID] = a.Slot
	m.text += Overhead + len(tag)
	return a, nil
}

// at is where an allocation of a slot is, or would be.
func (m *Machine) at(slot uint64) int {
	return sort.Search(len(m.allocations), func(i int) bool { return m.allocations[i].Slot >= slot })
}

func (m *Machine) find(allocation string) (Allocation, error) {
	slot, ok := m.bySlot[allocation]
	if !ok {
		return Allocation{}, fmt.Errorf("%w %q", ErrNotFound, allocation)
	}
	return m.allocations[m.at(slot)], nil
}

// Get returns an allocation.
func (m *Machine) Get(id SessionID, allocation string) (Allocation, error) {
	if err := m.Check(id, false, "get an allocation"); err != nil {
		return Allocation{}, err
	}
	return m.find(allocation)
}

// List returns the allocations by slot, those of a tag where tag is not nil.
func (m *Machine) List(id SessionID, tag *string) ([]Allocation, error) {
	if err := m.Check(id, false, "list allocations"); err != nil {
		return nil, err
	}
	out := []Allocation{}
	for _, a := range m.allocations {
		if tag == nil || a.Tag == *tag {
			out = append(out, a)
		}
	}
	return out, nil
}

// Free drops an allocation and its metadata. found is false for one that does
// not exist.
func (m *Machine) Free(id SessionID, allocation string) (found bool, e Effects, err error) {
	if err := m.writer(id, "free an allocation"); err != nil {
		return false, Effects{}, err
	}
	a, err := m.find(allocation)
	if err != nil {
		return false, Effects{}, nil //nolint:nilerr // told by found
	}
	at := m.at(a.Slot)
	m.allocations = slices.Delete(m.allocations, at, at+1)
	delete(m.bySlot, a.ID)
	m.text -= Overhead + len(a.Tag)
	for key, entry := range m.metadata {
		if entry.AllocationID == a.ID {
			m.drop(key, entry)
		}
	}
	return true, Effects{Freed: []Allocation{a}}, nil
}

func (m *Machine) drop(key string, e Entry) {
	delete(m.metadata, key)
	m.text -= cost(key, e.Value)
}

// Put sets a key of the metadata. The machine keeps value.
func (m *Machine) Put(id SessionID, key, allocation string, offset int64, value []byte) error {
	if err := m.writer(id, "put metadata"); err != nil {
		return err
	}
	a, err := m.find(allocation)
	if err != nil {
		return err
	}
	if offset < 0 || uint64(offset) >= a.AlignedSize {
		return fmt.Errorf("%w: offset is %d, must be 0 to %d of allocation %q", ErrBadValue, offset, a.AlignedSize-1, allocation)
	}
	old, replaces := m.metadata[key]
	grow := cost(key, value)
	if replaces {
		grow -= cost(key, old.Value)
	}
	if err := m.room(grow); err != nil {
		return err
	}
	m.metadata[key] = Entry{AllocationID: a.ID, Offset: uint64(offset), Value: value}
	m.text += grow
	return nil
}

// Metadata returns a key's entry, which must not be changed.
func (m *Machine) Metadata(id SessionID, key string) (Entry, bool, error) {
	if err := m.Check(id, false, "get metadata"); err != nil {
		return Entry{}, false, err
	}
	e, ok := m.metadata[key]
	return e, ok, nil
}

// Delete drops a key, and tells whether it was there.
func (m *Machine) Delete(id SessionID, key string) (bool, error) {
	if err := m.writer(id, "delete metadata"); err != nil {
		return false, err
	}
	e, ok := m.metadata[key]
	if ok {
		m.drop(key, e)
	}
	return ok, nil
}

// Keys returns the keys with a prefix, sorted.
func (m *Machine) Keys(id SessionID, prefix string) ([]string, error) {
	if err := m.Check(id, false, "list metadata"); err != nil {
		return nil, err
	}
	out := []string{}
	for key := range m.metadata {
		if strings.HasPrefix(key, prefix) {
			out = append(out, key)
		}
	}
	sort.Strings(out)
	return out, nil
}

// Allocations returns all allocations by slot, for whoever owns the machine.
func (m *Machine) Allocations() []Allocation { return slices.Clone(m.allocations) }
