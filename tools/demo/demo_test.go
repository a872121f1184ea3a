package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDraw records two shells and reads the drawing again: what a terminal showed is visible while it did.
func TestDraw(t *testing.T) {
	began := time.Now()
	env := append(os.Environ(), "TERM=xterm-256color", "PS1=$ ")
	one, err := newTerminal("one", 40, 5, began, env)
	require.NoError(t, err)
	two, err := newTerminal("two", 40, 5, began, env)
	require.NoError(t, err)
	require.NoError(t, one.play(t.Context(), `echo "a < b" 東京 $((40 + 2))`, "a < b 東京 42"))
	require.NoError(t, two.play(t.Context(), `printf 'gone %d' 7; sleep 0.5; printf '\r\033[K\033[1;31mstays %d\033[0m\n' 8`, "stays 8"))
	require.NoError(t, one.close())
	require.NoError(t, two.close())
	length := time.Since(began) + 200*time.Millisecond
	svg := string(draw(length, one, two))

	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
	line := func(text string) (class, keyframes string) {
		found := regexp.MustCompile(`<text [^>]*class="([^"]*)" style="animation-name:(k\d+)">(?:<tspan[^>]*>)?` + regexp.QuoteMeta(text) + `(?:</tspan>)?</text>`).FindStringSubmatch(svg)
		require.NotNil(t, found, "%s in %s", text, svg)
		return found[1], regexp.MustCompile(`@keyframes ` + found[2] + `\{.*\}`).FindString(svg)
	}
	class, keyframes := line("a &lt; b 東京 42")
	require.Equal(t, "a e", class, "the end has it")
	require.Equal(t, 1, strings.Count(keyframes, "{opacity:1}"))
	class, keyframes = line("gone 7")
	require.Equal(t, "a", class)
	require.Equal(t, 2, strings.Count(keyframes, "{opacity:0}"), "it comes and goes: %s", keyframes)
	class, _ = line("stays 8")
	require.Equal(t, "a e", class)
	require.Contains(t, svg, `class="b"`)
	require.NotContains(t, svg, "<script")
}

// TestDemo: what the README shows is a drawing of this program, which is small enough.
func TestDemo(t *testing.T) {
	svg, err := os.ReadFile("../../docs/demo.svg")
	require.NoError(t, err)
	require.Less(t, len(svg), 300<<10)
	for _, want := range []string{"kill -9 ", "remuda chat llama", "Last failover", "prefers-reduced-motion"} {
		require.Contains(t, string(svg), want)
	}
	for _, url := range regexp.MustCompile(`https?://[^"'<) ]+`).FindAllString(string(svg), -1) {
		require.Equal(t, "http://www.w3.org/2000/svg", url, "it loads nothing")
	}
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "](docs/demo.svg)")
}
