// Package backend says what a GPU memory service needs of the memory that it
// shares: physical memory without an address, held by reference count.
//
// Package host makes it of memfds and package cuda of the CUDA driver's
// virtual memory management. Both count the same way: memory is free when the last handle, the
// last descriptor and the last mapping are gone, in every process, and no call
// can take it away from a process that has it.
package backend

import "errors"

var (
	// ErrOutOfMemory is wrapped where the GPU has no room now. Trying again may
	// help: memory comes back when those who hold it let go.
	ErrOutOfMemory = errors.New("out of GPU memory")
	// ErrReleased is wrapped by an export of memory that has been released, and
	// by whatever is asked of a backend that has been closed.
	ErrReleased = errors.New("the memory has been released")
)

// Backend makes the physical memory of one GPU. The servers of all its tags
// share it. Its methods are safe for concurrent use.
type Backend interface {
	// Granularity is in bytes, and every size is a multiple of it.
	Granularity() uint64
	// Capacity is in bytes; 0 where it is not known.
	Capacity() uint64
	// Used is how many bytes are not free as far as the backend knows. It may
	// be more than Capacity after Restore.
	Used() uint64
	// Allocate makes memory. size must be a multiple of Granularity and more
	// than 0. The error wraps ErrOutOfMemory where there is no room now.
	Allocate(size uint64) (Memory, error)
	// Restore takes back memory that an earlier server exported, by the
	// descriptor that the keeper held. It owns fd, also when it fails.
	Restore(fd int, size uint64) (Memory, error)
	// Close gives up what the backend holds. Memory that others hold lives on.
	Close() error
}

// Memory is one allocation. Its methods are safe for concurrent use.
type Memory interface {
	// Size is in bytes, as it was asked for.
	Size() uint64
	// Export makes a fresh descriptor, closed on exec. The caller closes it.
	Export() (fd int, err error)
	// Release gives up the server's share. It may take long. Clients that hold
	// the memory keep it alive, and it stays used until the last lets go. A
	// second call does nothing.
	Release() error
}
