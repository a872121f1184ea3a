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
//	"remuda-state" version(uint32) feature level(uint32) index(uint64)
//	{ type(byte) length(uint32) JSON }          one for each row, tables in order
//	0x00 rows(uint64) SHA-256 of all before it
//
// with big-endian numbers. The same state has the same bytes on every server. An unknown
// record type is damage: a new one needs a higher feature level. The level is the lowest
// one that can apply every command that made the state. A row with an unknown field was
// written by a newer version.

// SnapshotVersion is the newest version that is written and read.
const SnapshotVersion = 1

const (
	snapshotMagic = "remuda-state"
	recordEnd     = 0x00
	// maxRecord is the longest row; a longer one is damage.
	maxRecord = 4 * MaxCommand
)

// Errors of Restore and Inspect; nothing was changed.
var (
	// ErrSnapshotDamaged: truncated, changed, or not a snapshot at all.
	ErrSnapshotDamaged = errors.New("snapshot is damaged")
	// ErrSnapshotNewer: its format is newer, or it needs a higher feature level.
	ErrSnapshotNewer = errors.New("snapshot was written by a newer version of remuda")
)

// SnapshotInfo describes a snapshot.
type SnapshotInfo struct {
	// Version is that of the format.
	Version uint32
	// FeatureLevel is the lowest one of a server that can have this state.
	FeatureLevel int
	// Index is that of the last command in it.
	Index uint64
	// Rows of each table.
	Rows map[Table]int
	// Bytes of the whole.
	Bytes int64
}

// WriteSnapshot streams the view. Applies go on meanwhile. A server needs the feature
// level to restore it.
func (v *View) WriteSnapshot(w io.Writer, level int) (SnapshotInfo, error) {
	info := SnapshotInfo{Version: SnapshotVersion, FeatureLevel: level, Index: v.Index(), Rows: map[Table]int{}}
	sw := newSnapshotWriter(w)
	sw.write([]byte(snapshotMagic))
	sw.write(binary.BigEndian.AppendUint32(nil, info.Version))
	sw.write(binary.BigEndian.AppendUint32(nil, uint32(level)))
	sw.write(binary.BigEndian.AppendUint64(nil, info.Index))
	for _, t := range append(tables[:], indexes) {
		it, err := v.txn.Get(string(t.name), byID)
		if err != nil {
			return info, fmt.Errorf("write snapshot: %s: %w", t.name, err)
		}
		for row := it.Next(); row != nil && sw.err == nil; row = it.Next() {
			sw.record(t.record, row)
			if t.name != tableIndex {
				info.Rows[t.name]++
			}
		}
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

// Restore replaces the whole state with a snapshot's. A snapshot that is not whole, or
// that needs more than the feature level, is rejected and changes nothing. Who waits for a
// change of the old state is woken.
func (s *Store) Restore(r io.Reader, level int) (SnapshotInfo, error) {
	d, err := newData()
	if err != nil {
		return SnapshotInfo{}, err
	}
	t := d.db.Txn(true)
	info, err := readSnapshot(r, level, func(table Table, row any) error { return t.Insert(string(table), row) })
	if err != nil {
		t.Abort()
		return info, fmt.Errorf("restore snapshot: %w", err)
	}
	t.Commit()
	s.write.Lock()
	old := s.data.Swap(d)
	s.write.Unlock()
	close(old.abandoned)
	return info, nil
}

// Inspect reads a snapshot to its end, checks all of it as Restore does, and keeps nothing.
func Inspect(r io.Reader, level int) (SnapshotInfo, error) {
	info, err := readSnapshot(r, level, func(Table, any) error { return nil })
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
func readSnapshot(from io.Reader, level int, keep func(Table, any) error) (SnapshotInfo, error) {
	info := SnapshotInfo{Rows: map[Table]int{}}
	r := &snapshotReader{r: bufio.NewReaderSize(from, 256<<10), sum: sha256.New()}
	head := r.next(len(snapshotMagic) + 4 + 4 + 8)
	if r.err != nil {
		return info, r.failure()
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return info, damaged("not a snapshot of remuda's state")
	}
	head = head[len(snapshotMagic):]
	info.Version, info.FeatureLevel, info.Index = binary.BigEndian.Uint32(head), int(binary.BigEndian.Uint32(head[4:])), binary.BigEndian.Uint64(head[8:])
	switch {
	case info.Version > SnapshotVersion:
		return info, fmt.Errorf("%w: its format is version %d, and this one reads up to %d: upgrade remuda", ErrSnapshotNewer, info.Version, SnapshotVersion)
	case info.FeatureLevel > level:
		return info, fmt.Errorf("%w: it needs feature level %d, and this one has %d: upgrade remuda", ErrSnapshotNewer, info.FeatureLevel, level)
	case info.Version == 0 || info.FeatureLevel == 0:
		return info, damaged("version %d, feature level %d: must be at least 1", info.Version, info.FeatureLevel)
	}
	var newer error
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
		record := kind[0]
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
		t := recorded(record)
		if t == nil {
			return info, damaged("unknown row type %d", record)
		}
		table, row := t.name, t.empty()
		switch unknown, err := decodeJSON(body, row); {
		case unknown && newer == nil: // if the checksum matches: a damaged name is unknown, too
			newer = fmt.Errorf("%w: row of %s: %w", ErrSnapshotNewer, table, err)
		case err != nil && !unknown:
			return info, damaged("row of %s: %v", table, err)
		}
		if t.key(row) == "" {
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
	if newer != nil {
		return info, newer
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
