import pytest

from support.trees import write_files

PROJECT = '{"name": "toy", "type": "module", "devDependencies": {"vitest": "^4", "tape": "^5"}}\n'
CODE = """export enum Way { Up = 1, Down = -1 }

export function clamp(value: number, low: number, high: number): number {
  if (low > high) throw new RangeError('low is above high');
  return value < low ? low : value > high ? high : value;
}

export const step = (value: number, way: Way): number => value + way;
"""
VITEST = """import { describe, expect, it } from 'vitest';
import { clamp } from '../src/toy.js';

describe('clamp', () => {
  const cases = [[1, 2], [5, 5], [9, 8]];
  it.each(cases)('of %i', (value: number, wanted: number) => expect(clamp(value, 2, 8)).toBe(wanted));
  it('refuses', () => expect(() => clamp(1, 3, 2)).toThrow(RangeError));
});
"""
NODE = """import test from 'node:test';
import assert from 'node:assert';
import { step, Way } from '../src/toy.js';

test('up', () => assert.equal(step(1, Way.Up), 2));
test('down', () => assert.equal(step(1, Way.Down), 0));
"""
TAPE = """import test from 'tape';
import { Way } from '../src/toy';

test('ways', (t) => { t.equal(Way.Up + Way.Down, 0); t.end(); });
"""


@pytest.fixture
def typed(tmp_path):
    """A repository in TypeScript, tested with vitest, node:test and tape."""
    files = {
        "package.json": PROJECT,
        "src/toy.ts": CODE,
        "test/clamp.test.ts": VITEST,
        "test/step.test.ts": NODE,
        "test/way.test.ts": TAPE,
    }
    return write_files(tmp_path / "toy", files)
