package nvml

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Record is a page of memory that a worker shares with the plugin: the NVML calls that the worker
// is in at this moment. It costs the worker no system call but reading the clock, the plugin can
// read it at any time, and it outlives a worker that crashes.
//
// Slot 0 is for calls about the node and for a worker of one GPU; slot 1+i is for calls about the
// GPU number i of the driver's list.
type Record struct{ page []byte }

const (
	slotBytes = 64
	slotName  = 8 // where in a slot the function's name begins; before it is when the call began
	// MaxGPUs is how many GPUs of a node have a slot; no node has a fourth of that.
	MaxGPUs    = 63
	recordSize = (1 + MaxGPUs) * slotBytes
)

// newRecord makes an empty record and the descriptor by which a worker opens it.
func newRecord() (*Record, int, error) {
	fd, err := unix.MemfdCreate("nvml-calls", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, -1, fmt.Errorf("make the record of NVML calls: %w", err)
	}
	err = unix.Ftruncate(fd, recordSize)
	var r *Record
	if err == nil {
		r, err = OpenRecord(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, fmt.Errorf("make the record of NVML calls: %w", err)
	}
	return r, fd, nil
}

// OpenRecord opens the record that another process made.
func OpenRecord(fd int) (*Record, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Size != recordSize { // a shorter file would end the process with SIGBUS
		return nil, fmt.Errorf("file descriptor %d has %d bytes: must be a record of %d", fd, st.Size, recordSize)
	}
	page, err := unix.Mmap(fd, 0, recordSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Record{page: page}, nil
}

func (r *Record) close() { _ = unix.Munmap(r.page) }

func (r *Record) began(slot int) *uint64 { return (*uint64)(unsafe.Pointer(&r.page[slot*slotBytes])) }

func (r *Record) name(slot int) []byte { return r.page[slot*slotBytes+slotName : (slot+1)*slotBytes] }

// Enter records that a function is about to be called. A nil record takes and has nothing.
func (r *Record) Enter(slot int, symbol string) {
	if r == nil {
		return
	}
	r.Leave(slot)
	name := r.name(slot)
	clear(name[copy(name, symbol):])
	atomic.StoreUint64(r.began(slot), monotonic())
}

// Leave records that the function has returned.
func (r *Record) Leave(slot int) {
	if r != nil {
		atomic.StoreUint64(r.began(slot), 0)
	}
}

// Call returns the function that is being called and for how long it has been; empty between calls.
func (r *Record) Call(slot int) (symbol string, since time.Duration) {
	before := atomic.LoadUint64(r.began(slot))
	text, _, _ := bytes.Cut(r.name(slot), []byte{0})
	symbol = strings.ToValidUTF8(string(text), "?") // the library can write into the page
	if before == 0 || atomic.LoadUint64(r.began(slot)) != before {
		return "", 0
	}
	return symbol, time.Duration(monotonic() - before)
}

// monotonic is a clock that all processes of the machine share, in nanoseconds; it is never 0.
func monotonic() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail for this clock
	return uint64(t.Nano())
}
