package state

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
)

// A snapshot is
//
//	"remuda-state" version(uint32) index(uint64)
//	{ type(byte) length(uint32) JSON }          one for each row, tables in order
//	0x00 rows(uint64) SHA-256 of all before it
//
// with big-endian numbers. The same state has the same bytes on every server. A
// record whose type has the bit IgnoreUnknown is skipped by servers that do not know
// it; any other unknown one needs a new version.
//
// Version 2 has rows of the tables dedicated, schedule and marks, version 3 of pipelines,
// version 4 of scalers. Where there are none, the version before is written, which servers of before can read.

// SnapshotVersion is the newest version that is written and read.
const SnapshotVersion = 4

const (
	snapshotMagic = "remuda-state"
	recordEnd     = 0x00
	recordIndex   = 0x40
	// maxRecord is the longest row; a longer one is damage.
	maxRecord = 4 * MaxCommand
)

// recordTypes of tables, in the same order. They are never reused.
var recordTypes = [len(tables)]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}

// firstRecord is, of each version after 1, the first record type that the one before has not.
var firstRecord = [SnapshotVersion - 1]byte{7, 10, 11}

// Errors of Restore and Inspect; nothing was changed.
var (
	// ErrSnapshotDamaged: truncated, changed, or not a snapshot at all.
	ErrSnapshotDamaged = errors.New("snapshot is damaged")
	// ErrSnapshotNewer: made by a newer version of remuda.
	ErrSnapshotNewer = errors.New("snapshot was written by a newer version of remuda")
)

// snapshotVersion returns the version that a snapshot of the view needs: the lowest that has
// all of its rows.
func (v *View) snapshotVersion() uint32 {
	version := uint32(1)
	for i, table := range tables {
		needs := uint32(1)
		for _, first := range firstRecord {
			if recordTypes[i] >= first {
				needs++
			}
		}
		if needs <= version {
			continue
		}
		it, err := v.txn.Get(string(table), byID)
		if err != nil {
			panic(err) // As in first.
		}
		if it.Next() != nil {
			version = needs
		}
	}
	return version
}

// SnapshotInfo describes a snapshot.
type SnapshotInfo struct {
	Version uint32
	// Index is that of the last command in it.
	Index uint64
	// Rows of each table.
	Rows map[Table]int
	// Bytes of the whole.
	Bytes int64
}

// WriteSnapshot streams the view. Applies go on meanwhile.
func (v *View) WriteSnapshot(w io.Writer) (SnapshotInfo, error) {
	info := SnapshotInfo{Version: v.snapshotVersion(), Index: v.Index(), Rows: map[Table]int{}}
	sw := newSnapshotWriter(w)
	sw.write([]byte(snapshotMagic))
	sw.write(binary.BigEndian.AppendUint32(nil, info.Version))
	sw.write(binary.BigEndian.AppendUint64(nil, info.Index))
	for i, table := range tables {
		it, err := v.txn.Get(string(table), byID)
		if err != nil {
			return info, fmt.Errorf("write snapshot: %s: %w", table, err)
		}
		for row := it.Next(); row != nil && sw.err == nil; row = it.Next() {
			sw.record(recordTypes[i], row)
			info.Rows[table]++
		}
	}
	indexes, _ := each[indexRow](v.txn, tableIndex, byID)
	for _, row := range indexes {
		sw.record(recordIndex, row)
	}
	sw.end()
	info.Bytes = sw.bytes
	if sw.err != nil {
		return info, fmt.Errorf("write snapshot: %w", sw.err)
	}
	return info, nil
}

// snapshotWriter keeps the first error.
type snapshotWriter struct {
	w     *bufio.Writer
	sum   hash.Hash
	row   bytes.Buffer
	json  *json.Encoder
	rows  uint64
	bytes int64
	err   error
}

func newSnapshotWriter(w io.Writer) *snapshotWriter {
	sw := &snapshotWriter{sum: sha256.New()}
	sw.w = bufio.NewWriterSize(io.MultiWriter(w, sw.sum), 256<<10)
	sw.json = json.NewEncoder(&sw.row)
	sw.json.SetEscapeHTML(false)
	return sw
}

func (sw *snapshotWriter) write(b []byte) {
	if sw.err == nil {
		_, sw.err = sw.w.Write(b)
		sw.bytes += int64(len(b))
	}
}

func (sw *snapshotWriter) record(kind byte, row any) {
	if sw.err != nil {
		return
	}
	sw.row.Reset()
	if err := sw.json.Encode(row); err != nil {
		sw.err = err
		return
	}
	if sw.row.Len() > maxRecord {
		sw.err = fmt.Errorf("row of type %d is %d bytes: must be at most %d bytes", kind, sw.row.Len(), maxRecord)
		return
	}
	var head [5]byte
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(sw.row.Len()))
	sw.write(head[:])
	sw.write(sw.row.Bytes())
	sw.rows++
}

func (sw *snapshotWriter) end() {
	sw.write(binary.BigEndian.AppendUint64([]byte{recordEnd}, sw.rows))
	if sw.err == nil {
		sw.err = sw.w.Flush()
	}
	sum := sw.sum.Sum(nil)
	sw.write(sum)
	if sw.err == nil {
		sw.err = sw.w.Flush()
	}
}

// Restore replaces the whole state with a snapshot's. A snapshot that is not whole,
// or of a newer version, is refused and changes nothing. Who waits for a change of
// the old state is woken.
func (s *Store) Restore(r io.Reader) error {
	d, err := newData()
	if err != nil {
		return err
	}
	t := d.db.Txn(true)
	if _, err := readSnapshot(r, func(table Table, row any) error { return t.Insert(string(table), row) }); err != nil {
		t.Abort()
		return fmt.Errorf("restore snapshot: %w", err)
	}
	t.Commit()
	s.write.Lock()
	old := s.data.Swap(d)
	s.write.Unlock()
	close(old.abandoned)
	return nil
}

// Inspect reads a snapshot to its end, checks all of it, and keeps nothing.
func Inspect(r io.Reader) (SnapshotInfo, error) {
	info, err := readSnapshot(r, func(Table, any) error { return nil })
	if err != nil {
		return info, fmt.Errorf("inspect snapshot: %w", err)
	}
	return info, nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSnapshotDamaged, fmt.Sprintf(format, args...))
}

// readSnapshot hands every row to keep. Rows that were handed over count only when
// it returns no error: the checksum comes last.
func readSnapshot(from io.Reader, keep func(Table, any) error) (SnapshotInfo, error) {
	info := SnapshotInfo{Rows: map[Table]int{}}
	r := &snapshotReader{r: bufio.NewReaderSize(from, 256<<10), sum: sha256.New()}
	head := r.next(len(snapshotMagic) + 4 + 8)
	if r.err != nil {
		return info, r.failure()
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return info, damaged("not a snapshot of remuda's state")
	}
	head = head[len(snapshotMagic):]
	info.Version, info.Index = binary.BigEndian.Uint32(head), binary.BigEndian.Uint64(head[4:])
	if info.Version > SnapshotVersion {
		return info, fmt.Errorf("%w: version %d, the highest supported version is %d", ErrSnapshotNewer, info.Version, SnapshotVersion)
	}
	if info.Version == 0 {
		return info, damaged("version is 0")
	}
	for rows := uint64(0); ; rows++ {
		kind := r.next(1)
		if r.err != nil {
			return info, r.failure()
		}
		if kind[0] == recordEnd {
			if count := r.next(8); r.err == nil && binary.BigEndian.Uint64(count) != rows {
				return info, damaged("%d rows, its trailer says %d", rows, binary.BigEndian.Uint64(count))
			}
			break
		}
		k := kind[0]
		length := r.next(4)
		if r.err != nil {
			return info, r.failure()
		}
		n := binary.BigEndian.Uint32(length)
		if n > maxRecord {
			return info, damaged("invalid row length %d", n)
		}
		body := r.next(int(n))
		if r.err != nil {
			return info, r.failure()
		}
		table, row := newRow(k)
		if row == nil {
			if k&byte(IgnoreUnknown) != 0 {
				continue
			}
			return info, damaged("unknown row type %d", k)
		}
		if err := json.Unmarshal(body, row); err != nil {
			return info, damaged("row of %s: %v", table, err)
		}
		if rowKey(row) == "" {
			return info, damaged("row of %s has no name", table)
		}
		if replica, ok := row.(*Replica); ok {
			if err := replica.checkLife(); err != nil {
				return info, damaged("row of %s: %v", table, err)
			}
		}
		if err := keep(table, row); err != nil {
			return info, damaged("row of %s: %v", table, err)
		}
		if table != tableIndex {
			info.Rows[table]++
		}
	}
	want := r.sum.Sum(nil)
	got := r.next(sha256.Size)
	if r.err != nil {
		return info, r.failure()
	}
	if !bytes.Equal(want, got) {
		return info, damaged("checksum does not match")
	}
	if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
		if err != nil {
			return info, err
		}
		return info, damaged("unexpected data after its end")
	}
	info.Bytes = r.bytes
	return info, nil
}

// snapshotReader keeps the first error.
type snapshotReader struct {
	r     *bufio.Reader
	sum   hash.Hash
	buf   []byte
	bytes int64
	err   error
}

// readStep bounds what is allocated before it has come, so that a damaged length
// costs no memory.
const readStep = 1 << 20

// next returns the next n bytes, valid until the next call.
func (r *snapshotReader) next(n int) []byte {
	if r.err != nil {
		return nil
	}
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		at := len(r.buf)
		end := min(n, at+readStep)
		if cap(r.buf) < end {
			r.buf = append(make([]byte, 0, max(end, 4096)), r.buf...)
		}
		r.buf = r.buf[:end]
		if _, r.err = io.ReadFull(r.r, r.buf[at:end]); r.err != nil {
			return nil
		}
	}
	r.sum.Write(r.buf)
	r.bytes += int64(n)
	return r.buf
}

func (r *snapshotReader) failure() error {
	if errors.Is(r.err, io.EOF) || errors.Is(r.err, io.ErrUnexpectedEOF) {
		return damaged("truncated after %d bytes", r.bytes)
	}
	return r.err
}

// newRow returns the table of a record type and an empty row of it; nil where the
// type is not known.
func newRow(kind byte) (Table, any) {
	if kind == recordIndex {
		return tableIndex, new(indexRow)
	}
	for i, k := range recordTypes {
		if k != kind {
			continue
		}
		switch tables[i] {
		case TableModels:
			return TableModels, new(Model)
		case TableNodes:
			return TableNodes, new(Node)
		case TableReplicas:
			return TableReplicas, new(Replica)
		case TableDecisions:
			return TableDecisions, new(Decision)
		case TableSwitches:
			return TableSwitches, new(Switch)
		case TableTokens:
			return TableTokens, new(Token)
		case TableDedicated:
			return TableDedicated, new(Dedicated)
		case TableSchedule:
			return TableSchedule, new(Schedule)
		case TableMarks:
			return TableMarks, new(Mark)
		case TablePipelines:
			return TablePipelines, new(Pipeline)
		case TableScalers:
			return TableScalers, new(Scaler)
		}
	}
	return "", nil
}

// rowKey returns what a row is known by; empty where it has nothing.
func rowKey(row any) string {
	switch row := row.(type) {
	case *indexRow:
		return row.Key
	case *Model:
		return row.Name
	case *Node:
		return row.ID
	case *Replica:
		if row.Placement.Node == "" || row.Name.Model == "" {
			return ""
		}
		return row.Name.String()
	case *Decision:
		return row.Kind
	case *Switch:
		return row.Name
	case *Token:
		if row.Hash == "" {
			return ""
		}
		return row.Accessor
	case *Dedicated:
		return row.Source
	case *Schedule:
		return row.File
	case *Mark:
		return row.Key
	case *Pipeline:
		return row.Name
	case *Scaler:
		return row.Name
	}
	return ""
}
