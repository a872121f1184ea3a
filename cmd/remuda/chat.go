package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Environment of remuda chat.
const (
	envGateway = "REMUDA_GATEWAY" // the URL of a gateway
	envAPIKey  = "REMUDA_API_KEY" // the secret of an API key of the gateways
)

// defaultGateway is where a gateway on this machine answers.
const defaultGateway = "http://127.0.0.1:8080"

func (p *program) chatVerb() verb {
	return verb{
		synopsis: "Chat with a model",
		usage:    "MODEL [flags]",
		args:     []string{"MODEL"},
		about: `Sends what you type to a model through a gateway, and prints the answer as it arrives, with the
replica that answered and its speed. The conversation is kept until you leave with Ctrl-D. Ctrl-C
ends an answer. With -m, asks one question and leaves: the answer is on standard output, all else
on standard error.`,
		anywhere: true,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			c := &chat{p: p}
			var address, key, ca, system, question string
			fs.StringVar(&address, "gateway", "", "`URL` of a gateway (default: $"+envGateway+", else "+defaultGateway+")")
			fs.StringVar(&key, "key", "", "the `secret` of an API key (default: $"+envAPIKey+")")
			fs.StringVar(&ca, "ca-cert", "", "`file` with the CA of the gateway's certificate (default: the system's)")
			fs.StringVar(&question, "m", "", "ask this `text` and leave; - reads it from standard input")
			fs.StringVar(&system, "system", "", "`text` of a system message that begins the conversation")
			fs.IntVar(&c.maxTokens, "max-tokens", 0, "longest answer in tokens; 0: the model's own limit")
			return func(ctx context.Context, args []string) error {
				if err := checkArgs([]string{"MODEL"}, args); err != nil {
					return err
				}
				if c.maxTokens < 0 {
					return usagef("-max-tokens is %d: must be 0 or more", c.maxTokens)
				}
				c.model = args[0]
				var err error
				if c.gateway, err = newGatewayClient(cmp.Or(address, os.Getenv(envGateway), defaultGateway), cmp.Or(key, os.Getenv(envAPIKey)), ca); err != nil {
					return usageError{err.Error()}
				}
				defer c.gateway.close()
				c.notes = terminalOf(p.stderr, os.Getenv)
				if system != "" {
					c.said = append(c.said, chatMessage{"system", system})
				}
				if question == "" {
					return c.converse(ctx)
				}
				if question == "-" {
					text, err := io.ReadAll(p.stdin)
					if err != nil {
						return fmt.Errorf("read standard input: %w", err)
					}
					question = string(text)
				}
				return c.ask(ctx, question)
			}
		},
	}
}

// chat is a conversation with a model.
type chat struct {
	p         *program
	gateway   *gatewayClient
	model     string
	maxTokens int
	said      []chatMessage
	// notes is standard error.
	notes terminal
	// status: the last line of standard error is where the request stands.
	status bool
}

// ask asks a question and prints the answer. A question without an answer is forgotten.
func (c *chat) ask(ctx context.Context, question string) error {
	said := append(c.said[:len(c.said):len(c.said)], chatMessage{"user", question})
	var text strings.Builder
	thinking := false
	began := time.Now()
	a, err := c.gateway.chat(ctx, chatRequest{Model: c.model, Messages: said, MaxTokens: c.maxTokens}, chatEvents{
		waits: func(state string) { c.note("waiting: " + state) },
		text: func(piece string, thought bool) {
			c.note("")
			if !thought {
				text.WriteString(piece)
			}
			if thought != thinking {
				thinking = thought
				if !thought {
					fmt.Fprintln(c.p.stderr)
				}
			}
			if thought { // kept out of the standard output
				fmt.Fprint(c.p.stderr, c.notes.paint("2", piece))
				return
			}
			fmt.Fprint(c.p.stdout, piece)
		},
	})
	c.note("")
	if text.Len() > 0 || thinking {
		fmt.Fprintln(c.p.stdout)
		c.said = append(said, chatMessage{"assistant", text.String()})
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(c.p.stderr, c.notes.paint("2", "["+a.summary(time.Since(began))+"]"))
	return nil
}

// note shows where a request stands, in place of the note before. It needs a terminal.
func (c *chat) note(text string) {
	if !c.notes.controls || text == "" && !c.status {
		return
	}
	c.status = text != ""
	runes := []rune(text)
	fmt.Fprint(c.p.stderr, "\r\x1b[K"+c.notes.paint("2", string(runes[:min(len(runes), c.notes.width-1)])))
}

// converse sends each line of standard input as a question, until the end of input, or Ctrl-C between
// two answers.
func (c *chat) converse(ctx context.Context) error {
	// Ctrl-C is for the answer, not for the program.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx = context.WithoutCancel(ctx)
	lines := make(chan string)
	var readErr error
	go func() {
		defer close(lines)
		in := bufio.NewScanner(c.p.stdin)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			lines <- in.Text()
		}
		readErr = in.Err()
	}()
	prompt := func() {
		if c.notes.controls {
			fmt.Fprint(c.p.stderr, "> ")
		}
	}
	for {
		prompt()
		select {
		case <-signals:
			fmt.Fprintln(c.p.stderr)
			return nil
		case line, more := <-lines:
			if !more {
				return readErr
			}
			if strings.TrimSpace(line) == "" {
				continue
			}
			stopped, err := c.answer(ctx, line, signals)
			if err != nil || stopped {
				return err
			}
		}
	}
}

// answer is ask until Ctrl-C. It reports whether the program was stopped.
func (c *chat) answer(ctx context.Context, line string, signals <-chan os.Signal) (stopped bool, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	done := make(chan error, 1)
	go func() { done <- c.ask(ctx, line) }()
	for {
		select {
		case s := <-signals:
			stopped = s != os.Interrupt
			end()
		case err := <-done:
			var refused *gatewayError
			switch {
			case err == nil:
			case ctx.Err() != nil:
				fmt.Fprintln(c.p.stderr, c.notes.paint("2", "[ended]"))
			case errors.As(err, &refused) && refused.passing():
				fmt.Fprintf(c.p.stderr, "remuda chat: %v\n", err) // The next question may be answered.
			default:
				return stopped, err
			}
			return stopped, nil
		}
	}
}
