package redisstore

import (
	"testing"

	"leeway/broker"
)

func TestStoredText(t *testing.T) {
	for _, tt := range []struct{ text, instruction, stored string }{
		{"x", "", "x"},
		{"", "", ""},
		{"x", "y", "\x001\x00yx"},
		{"\x00", "", "\x000\x00\x00"},
		{"\x003\x00abc", "", "\x000\x00\x003\x00abc"},
		{"\x00x", "\x00y", "\x002\x00\x00y\x00x"},
	} {
		stored := storedText(&broker.Submission{Spec: broker.Spec{Text: tt.text, Instruction: tt.instruction}})
		if stored != tt.stored {
			t.Errorf("%q and %q are stored as %q", tt.text, tt.instruction, stored)
		}
		if text, instruction := readText(stored); text != tt.text || instruction != tt.instruction {
			t.Errorf("%q comes back as %q and %q", stored, text, instruction)
		}
	}
	// What is not in our form comes back as it is.
	for _, s := range []string{"\x00", "\x001", "\x00x\x00y", "\x00-1\x00y", "\x003\x00ab"} {
		if text, instruction := readText(s); text != s || instruction != "" {
			t.Errorf("%q comes back as %q and %q", s, text, instruction)
		}
	}
}

func FuzzStoredText(f *testing.F) {
	f.Add("text", "instruction")
	f.Add("\x001\x00", "\x00")
	f.Fuzz(func(t *testing.T, text, instruction string) {
		got, in := readText(storedText(&broker.Submission{Spec: broker.Spec{Text: text, Instruction: instruction}}))
		if got != text || in != instruction {
			t.Fatalf("%q and %q come back as %q and %q", text, instruction, got, in)
		}
		readText(text)
	})
}
