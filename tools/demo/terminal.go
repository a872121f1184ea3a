package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
)

// terminal is a shell in a pseudo terminal whose output is kept with its times.
type terminal struct {
	title         string
	width, height int
	began         time.Time
	shell         *exec.Cmd
	tty           *os.File
	read          chan struct{}

	mu     sync.Mutex
	screen *vt.Emulator
	output []piece
}

// piece is what a terminal got at a time since the beginning.
type piece struct {
	at   time.Duration
	data []byte
}

func newTerminal(title string, width, height int, began time.Time, env []string) (*terminal, error) {
	t := &terminal{title: title, width: width, height: height, began: began, screen: vt.NewEmulator(width, height), read: make(chan struct{}),
		shell: exec.Command("bash", "--norc", "--noprofile")}
	t.shell.Env = env
	var err error
	if t.tty, err = pty.StartWithSize(t.shell, &pty.Winsize{Rows: uint16(height), Cols: uint16(width)}); err != nil {
		return nil, fmt.Errorf("start a terminal: %w", err)
	}
	go func() { _, _ = io.Copy(t.tty, t.screen) }() // what the emulator answers
	go func() {
		defer close(t.read)
		buf := make([]byte, 4096)
		for {
			n, err := t.tty.Read(buf)
			t.mu.Lock()
			t.output = append(t.output, piece{time.Since(t.began), append([]byte{}, buf[:n]...)})
			_, _ = t.screen.Write(buf[:n])
			t.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return t, nil
}

func (t *terminal) close() error {
	err := errors.Join(t.shell.Process.Kill(), t.tty.Close())
	_ = t.shell.Wait() // killed
	<-t.read
	return errors.Join(err, t.screen.Close())
}

func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.String()
}

// play types a command as a person would, and waits until the terminal shows a text after it.
func (t *terminal) play(ctx context.Context, command, shows string) error {
	before := 0
	if command != "" {
		for _, r := range command {
			if _, err := t.tty.WriteString(string(r)); err != nil {
				return err
			}
			time.Sleep(28 * time.Millisecond)
		}
		time.Sleep(400 * time.Millisecond)
		before = strings.Count(t.text(), shows)
		if _, err := t.tty.WriteString("\n"); err != nil {
			return err
		}
	}
	if shows == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for strings.Count(t.text(), shows) <= before {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%q does not show %q; it shows:\n%s", command, shows, t.text())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
