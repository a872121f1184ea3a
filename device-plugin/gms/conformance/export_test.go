package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// export asks for an allocation's descriptor: exactly one, on the first byte.
func (l *link) export(a allocation) (allocation, int) {
	l.t.Helper()
	l.post(newMessage("export_allocation_request", "allocation_id", a.id))
	return l.exported()
}

// exported reads the answer to an export.
func (l *link) exported() (allocation, int) {
	l.t.Helper()
	got, err := l.receive(patience)
	require.NoError(l.t, err)
	require.Equal(l.t, "export_allocation_response", got.kind(), "%v", got.message)
	require.Len(l.t, got.fds, 1, "descriptors of an export")
	require.Zero(l.t, got.late, "the descriptor rides on the first byte")
	return readAllocation(l.t, got.message), got.fds[0]
}

func closeFD(fd int) { _ = unix.Close(fd) }

// mapping maps an export of an allocation, shared; the descriptor is closed.
func (l *link) mapping(a allocation, prot int) []byte {
	l.t.Helper()
	_, fd := l.export(a)
	defer closeFD(fd)
	return mapShared(l.t, fd, a.aligned, prot)
}

func mapShared(t testing.TB, fd int, size int64, prot int) []byte {
	t.Helper()
	mem, err := unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// pattern fills memory so that every page and every allocation differ.
func pattern(mem []byte, seed byte) {
	for i := range mem {
		mem[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ seed
	}
}

// patternFault is the first byte that is not as pattern wrote it, or -1.
func patternFault(mem []byte, seed byte) int {
	for i, b := range mem {
		if b != byte(i)^byte(i>>8)^byte(i>>16)^seed {
			return i
		}
	}
	return -1
}

func TestExportIsMemoryThatEveryMapperShares(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(3*mib, "x") // two granules: all of aligned_size can be used
	require.EqualValues(t, 2*granularity, a.aligned)
	mem := w.mapping(a, unix.PROT_READ|unix.PROT_WRITE)
	require.Equal(t, make([]byte, len(mem)), mem, "new memory has nobody's data")
	pattern(mem, 1)
	again := w.mapping(a, unix.PROT_READ)
	require.Equal(t, -1, patternFault(again, 1))
	w.commit()
	mem[5] ^= 0xff // the mapping outlives the session
	r := open(t, g.weights, reader)
	seen := r.mapping(a, unix.PROT_READ)
	require.Equal(t, 5, patternFault(seen, 1))
	mem[5] ^= 0xff
	require.Equal(t, -1, patternFault(seen, 1))
}

func TestEveryExportIsAFreshDescriptor(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	var fds []int
	for range 5 {
		_, fd := w.export(a)
		fds = append(fds, fd)
	}
	first := mapShared(t, fds[0], a.aligned, unix.PROT_READ|unix.PROT_WRITE)
	first[9] = 9
	// Closing one leaves the others, and what is mapped.
	for i, fd := range fds {
		mem := mapShared(t, fd, a.aligned, unix.PROT_READ)
		require.EqualValues(t, 9, mem[9], "export %d", i)
		closeFD(fd)
	}
}

func TestAllocationsAreMemoryOfTheirOwn(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a, b := w.allocate(100, "x"), w.allocate(100, "x")
	pattern(w.mapping(a, unix.PROT_READ|unix.PROT_WRITE), 3)
	pattern(w.mapping(b, unix.PROT_READ|unix.PROT_WRITE), 4)
	require.Equal(t, -1, patternFault(w.mapping(a, unix.PROT_READ), 3))
	require.Equal(t, -1, patternFault(w.mapping(b, unix.PROT_READ), 4))
}

// TestMemoryOfAFreedAllocationIsNotSeenAgain: what comes next is zero, while who
// still maps the old keeps it.
func TestMemoryOfAFreedAllocationIsNotSeenAgain(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(granularity, "x")
	old := w.mapping(a, unix.PROT_READ|unix.PROT_WRITE)
	pattern(old, 7)
	w.free(a)
	b := w.allocate(granularity, "x")
	require.Equal(t, make([]byte, granularity), w.mapping(b, unix.PROT_READ))
	require.Equal(t, -1, patternFault(old, 7))
}

// TestNobodyCanTakeMemoryFromUnderAnother: GPU memory cannot be made smaller or
// larger, so its stand-in cannot either. Who maps it would die of a SIGBUS.
func TestNobodyCanTakeMemoryFromUnderAnother(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(granularity, "x")
	pattern(w.mapping(a, unix.PROT_READ|unix.PROT_WRITE), 1)
	w.commit()
	r := open(t, g.weights, reader)
	_, fd := r.export(a)
	defer closeFD(fd)
	for _, size := range []int64{0, granularity - 4096, 2 * granularity} {
		require.Error(t, unix.Ftruncate(fd, size), "size %d", size)
	}
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	require.EqualValues(t, granularity, st.Size)
	require.Equal(t, -1, patternFault(r.mapping(a, unix.PROT_READ), 1))
}

// TestNoOtherAnswerCarriesADescriptor: link.next checks each; here is each of them.
func TestNoOtherAnswerCarriesADescriptor(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	w.post(newMessage("export_allocation_request", "allocation_id", "no such"))
	requireError(t, w.next(), "export of an unknown allocation")
	for _, q := range requests(a.id) {
		if q.kind == "commit" || q.kind == "free_allocation" || q.kind == "export_allocation" {
			continue
		}
		w.ask(q.kind, q.pairs...)
	}
	w.free(a)
	w.post(newMessage("export_allocation_request", "allocation_id", a.id))
	requireError(t, w.next(), "export of a freed allocation")
	w.commit()
}

// TestExportsThatAreAskedTogetherComeInOrder: one descriptor each, of the right
// memory.
func TestExportsThatAreAskedTogetherComeInOrder(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	var all []allocation
	for i := range 8 {
		a := w.allocate(granularity, "x")
		w.mapping(a, unix.PROT_READ|unix.PROT_WRITE)[0] = byte(i + 1)
		all = append(all, a)
	}
	for _, a := range all {
		w.post(newMessage("export_allocation_request", "allocation_id", a.id))
	}
	for i, a := range all {
		got, fd := w.exported()
		require.Equal(t, a, got)
		require.EqualValues(t, i+1, mapShared(t, fd, a.aligned, unix.PROT_READ)[0])
		closeFD(fd)
	}
}
