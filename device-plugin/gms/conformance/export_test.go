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

// mapping maps an export of an allocation; the descriptor is closed.
func (l *link) mapping(a allocation, writable bool) mapped {
	l.t.Helper()
	_, fd := l.export(a)
	defer closeFD(fd)
	return mapFD(l.t, fd, a.aligned, writable)
}

func TestExportIsMemoryThatEveryMapperShares(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(3*mib, "x") // two granules: all of aligned_size can be used
	require.EqualValues(t, 2*granularity, a.aligned)
	mem := w.mapping(a, true)
	mem.fill(1)
	again := w.mapping(a, false)
	require.EqualValues(t, -1, again.fault(1))
	w.commit()
	mem.set(5, ^patternByte(5, 1)) // the mapping outlives the session
	r := open(t, g.weights, reader)
	seen := r.mapping(a, false)
	require.EqualValues(t, 5, seen.fault(1))
	mem.set(5, patternByte(5, 1))
	require.EqualValues(t, -1, seen.fault(1))
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
	mapFD(t, fds[0], a.aligned, true).set(0, 9)
	// Closing one leaves the others, and what is mapped.
	for i, fd := range fds {
		require.EqualValues(t, 9, mapFD(t, fd, a.aligned, false).bytes(1)[0], "export %d", i)
		closeFD(fd)
	}
}

func TestAllocationsAreMemoryOfTheirOwn(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a, b := w.allocate(100, "x"), w.allocate(100, "x")
	w.mapping(a, true).fill(3)
	w.mapping(b, true).fill(4)
	require.EqualValues(t, -1, w.mapping(a, false).fault(3))
	require.EqualValues(t, -1, w.mapping(b, false).fault(4))
}

// TestMemoryOfAFreedAllocationIsNotSeenAgain: new memory is zero, and a client that
// still maps the freed allocation keeps its bytes.
func TestMemoryOfAFreedAllocationIsNotSeenAgain(t *testing.T) {
	hostOnly(t, "the driver does not promise that new memory is zero")
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(granularity, "x")
	old := w.mapping(a, true)
	require.Equal(t, make([]byte, granularity), old.bytes(granularity))
	old.fill(7)
	w.free(a)
	b := w.allocate(granularity, "x")
	require.Equal(t, make([]byte, granularity), w.mapping(b, false).bytes(granularity))
	require.EqualValues(t, -1, old.fault(7))
}

// TestNobodyCanTakeMemoryFromUnderAnother: GPU memory cannot be made smaller or
// larger, so its stand-in cannot either. Who maps it would die of a SIGBUS.
func TestNobodyCanTakeMemoryFromUnderAnother(t *testing.T) {
	hostOnly(t, "the descriptor is the driver's own and not a file")
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(granularity, "x")
	w.mapping(a, true).fill(1)
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
	require.EqualValues(t, -1, r.mapping(a, false).fault(1))
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
		w.mapping(a, true).set(0, byte(i+1))
		all = append(all, a)
	}
	for _, a := range all {
		w.post(newMessage("export_allocation_request", "allocation_id", a.id))
	}
	for i, a := range all {
		got, fd := w.exported()
		require.Equal(t, a, got)
		require.EqualValues(t, i+1, mapFD(t, fd, a.aligned, false).bytes(1)[0])
		closeFD(fd)
	}
}
