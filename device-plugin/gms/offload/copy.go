package offload

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Copy is what Save took. It is memory outside the Go heap, so that Free gives it back
// to the kernel at once. It is not safe for concurrent use.
type Copy struct {
	parts []*part // in the order of Config.Sockets; nil where nothing came
}

// part is one GPU's layout.
type part struct {
	hash        string
	allocations []allocation // by slot
	metadata    []metadata   // by key
	memory      []byte
}

type allocation struct {
	size  uint64
	tag   string
	bytes []byte // of part.memory
	sum   uint64 // xxh64
}

type metadata struct {
	key        string
	allocation int // its index
	offset     uint64
	value      []byte
}

// Bytes is how much host memory the copy takes.
func (c *Copy) Bytes() (n int64) {
	for _, p := range c.parts {
		if p != nil {
			n += int64(len(p.memory))
		}
	}
	return n
}

// Free gives the memory back. The copy is empty then.
func (c *Copy) Free() error {
	var errs []error
	for _, p := range c.parts {
		if p != nil && p.memory != nil {
			errs = append(errs, unix.Munmap(p.memory))
		}
	}
	c.parts = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("free saved GPU memory: %w", err)
	}
	return nil
}

// room makes the memory for the allocations' bytes.
func (p *part) room() error {
	total := 0
	for _, a := range p.allocations {
		total += int(a.size)
	}
	if total == 0 {
		return nil
	}
	memory, err := unix.Mmap(-1, 0, total, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("take %d bytes of host memory: %w", total, err)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // a kernel without refuses, which is fine
	p.memory = memory
	for i := range p.allocations {
		n := int(p.allocations[i].size)
		p.allocations[i].bytes, memory = memory[:n:n], memory[n:]
	}
	return nil
}
