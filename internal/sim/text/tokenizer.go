package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxRun is the longest run of letters, in bytes, that is looked up as one
// word; no word of the vocabulary is longer.
const maxRun = 16

// Encode turns text into token identifiers: one for each word or mark of the
// vocabulary and one for at most three bytes of anything else. Decode reverses
// it exactly, also for text that is not valid UTF-8.
func Encode(s string) []int {
	ids := make([]int, 0, len(s)/4+1)
	pieces(s, func(p string) {
		if id, ok := vocabID[p]; ok {
			ids = append(ids, int(id))
			return
		}
		for len(p) > 0 {
			n := min(3, len(p))
			ids = append(ids, pack(p[:n]))
			p = p[n:]
		}
	})
	return ids
}

// Count is len(Encode(s)) without the list.
func Count(s string) int {
	n := 0
	pieces(s, func(p string) {
		if _, ok := vocabID[p]; ok {
			n++
			return
		}
		n += (len(p) + 2) / 3
	})
	return n
}

// Decode turns token identifiers back into text. It fails on an identifier
// outside the vocabulary.
func Decode(ids []int) (string, error) {
	var b strings.Builder
	for i, id := range ids {
		switch {
		case id < 0 || id >= VocabSize:
			return "", fmt.Errorf("token id %d at position %d is out of vocabulary: must be 0 to %d", id, i, VocabSize-1)
		case id < wordBase:
			b.WriteByte(byte(id))
		case id >= tripleBase:
			v := id - tripleBase
			b.Write([]byte{byte(v >> 16), byte(v >> 8), byte(v)})
		case id >= pairBase:
			v := id - pairBase
			b.Write([]byte{byte(v >> 8), byte(v)})
		case id == eosToken || id >= firstWordID+len(vocabText):
			// The end mark and unused identifiers have no text.
		default:
			b.WriteString(vocabText[id-firstWordID])
		}
	}
	return b.String(), nil
}

func pack(p string) int {
	switch len(p) {
	case 1:
		return int(p[0])
	case 2:
		return pairBase + int(p[0])<<8 + int(p[1])
	default:
		return tripleBase + int(p[0])<<16 + int(p[1])<<8 + int(p[2])
	}
}

// pieces cuts s into the units that the vocabulary is looked up with: a run of
// letters or one other character, each with one space before it if there is
// one. The marks of the chat template are units of their own.
func pieces(s string, yield func(string)) {
	for len(s) > 0 {
		n := pieceLen(s)
		yield(s[:n])
		s = s[n:]
	}
}

func pieceLen(s string) int {
	if s[0] == '<' {
		for _, mark := range [...]string{imStart, imEnd} {
			if strings.HasPrefix(s, mark) {
				return len(mark)
			}
		}
	}
	start := 0
	if s[0] == ' ' && len(s) > 1 && s[1] != ' ' {
		start = 1
	}
	n := start
	for n < len(s) {
		size, letter := letterAt(s[n:])
		if !letter {
			if n == start {
				n += size
			}
			break
		}
		if n+size-start > maxRun {
			break
		}
		n += size
	}
	return n
}

func letterAt(s string) (size int, letter bool) {
	c := s[0]
	if c < utf8.RuneSelf {
		return 1, 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	r, n := utf8.DecodeRuneInString(s)
	return n, r != utf8.RuneError && unicode.IsLetter(r)
}
