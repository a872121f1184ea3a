package accesslog

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// sink is where lines go.
type sink struct {
	file *os.File
	// standard says that it is the standard output, which is others' as well.
	standard bool
	// torn says that the file ends in the middle of a line.
	torn bool
}

// openSink opens a path for appending. A named pipe needs a reader already: without
// one it is refused, rather than waited for.
func openSink(path string) (*sink, error) {
	if path == Stdout {
		return &sink{file: os.Stdout, standard: true}, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return nil, fmt.Errorf("access log: open %s for appending: %w", path, err)
	}
	torn, err := endsTorn(f, path)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("access log: read the end of %s: %w", path, err)
	}
	return &sink{file: f, torn: torn}, nil
}

// endsTorn reports whether a file has a last line without its line break, as a
// process leaves it that died in a write.
func endsTorn(f *os.File, path string) (bool, error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false, err
	}
	r, err := os.Open(path)
	if os.IsPermission(err) {
		return false, nil // it may be written, not read: taken for whole
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	var end [1]byte
	if _, err := r.ReadAt(end[:], info.Size()-1); err != nil {
		return false, err
	}
	return end[0] != '\n', nil
}

// write writes whole lines and returns how many bytes of them got there.
func (s *sink) write(lines []byte) (int, error) {
	if s.torn {
		if _, err := s.file.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		s.torn = false
	}
	n, err := s.file.Write(lines)
	if n > 0 {
		s.torn = lines[n-1] != '\n'
	}
	return n, err
}

// abort ends a write that hangs and lets all later ones fail, where the kind of file
// allows it: pipes do, regular files do not, and the standard output is left alone.
func (s *sink) abort() bool {
	return !s.standard && s.file.SetWriteDeadline(time.Unix(1, 0)) == nil
}

// close closes the file; the standard output stays open. Lines have reached the
// kernel before, so there is nothing that its error could tell.
func (s *sink) close() {
	if !s.standard {
		s.file.Close()
	}
}
